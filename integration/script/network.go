package script

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// serve starts an HTTP server on loopback that answers with a text and the path: serve VARIABLE TEXT.
func serve(ts *testscript.TestScript, _ bool, args []string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, args[1], r.URL.Path)
	}))
	ts.Defer(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	ts.Check(err)
	ts.Setenv(args[0], port)
}

// freePort puts a port of loopback that is free into a variable: freeport VARIABLE.
func freePort(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Check(l.Close())
	_, port, err := net.SplitHostPort(l.Addr().String())
	ts.Check(err)
	ts.Setenv(args[0], port)
}

// fetch waits until a URL answers with a text: fetch URL TEXT.
func fetch(ts *testscript.TestScript, _ bool, args []string) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	var last string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		response, err := client.Get(args[0])
		if err != nil {
			last = err.Error()
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err == nil && strings.Contains(string(body), args[1]) {
			return
		}
		last = fmt.Sprintf("%q, %v", body, err)
	}
	ts.Fatalf("%s: %s", args[0], last)
}

// datagram sends one to an address: datagram ADDRESS.
func datagram(ts *testscript.TestScript, _ bool, args []string) {
	c, err := net.Dial("udp", args[0])
	ts.Check(err)
	_, err = c.Write([]byte("hello"))
	ts.Check(err)
	ts.Check(c.Close())
}

// pcapFile checks that a file is a capture of Ethernet with at least so many frames: pcap FILE COUNT.
func pcapFile(ts *testscript.TestScript, _ bool, args []string) {
	var want int
	_, err := fmt.Sscan(args[1], &want)
	ts.Check(err)
	data, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	magic := map[string]bool{"\xd4\xc3\xb2\xa1": true, "\x4d\x3c\xb2\xa1": true} // little-endian, micro- or nanoseconds
	if len(data) < 24 || !magic[string(data[:4])] || binary.LittleEndian.Uint32(data[20:]) != 1 {
		ts.Fatalf("%s does not begin as a capture of Ethernet", args[0])
	}
	frames := 0
	for data = data[24:]; len(data) >= 16; frames++ {
		size := int(binary.LittleEndian.Uint32(data[8:]))
		if size > len(data)-16 {
			break
		}
		data = data[16+size:]
	}
	if frames < want || len(data) > 0 {
		ts.Fatalf("%d frames, %d bytes left over; want %d frames", frames, len(data), want)
	}
}
