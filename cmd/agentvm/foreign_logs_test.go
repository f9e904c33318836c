package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"testing"

	netlog "gvisor.dev/gvisor/pkg/log"
)

// TestForeignLogs: what a server sends unasked, and what gVisor logs, does not reach standard error.
func TestForeignLogs(t *testing.T) {
	const marker = "AGENTVM_TEST_FOREIGN_LOGS"
	if os.Getenv(marker) != "" {
		discardForeignLogs()
		netlog.Warningf("sk-live-0123")
		sendUnasked(t)
		return
	}
	child := exec.Command(os.Args[0], "-test.run=^TestForeignLogs$")
	child.Env = append(os.Environ(), marker+"=1")
	var stderr bytes.Buffer
	child.Stderr = &stderr
	if out, err := child.Output(); err != nil || stderr.Len() > 0 {
		t.Errorf("%v\n%s\nstandard error: %s", err, out, stderr.Bytes())
	}
}

// sendUnasked returns after net/http's client has read more than the one answer that it asked for.
func sendUnasked(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	answered, closed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(closed)
		c, err := listener.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		<-answered
		_, _ = io.WriteString(c, "HTTP/1.1 200 sk-live-0123\r\n\r\n")
		_, _ = c.Read(make([]byte, 1)) // the client closes the connection, after it has logged
	}()
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	answer, err := (&http.Client{Transport: transport}).Get("http://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	close(answered)
	<-closed
}
