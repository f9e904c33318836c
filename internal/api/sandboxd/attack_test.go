package sandboxd

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"agentvm/internal/httpserver/servertest"
)

// TestConnectionsOpenedAndDropped: 10,000 connections to either port that are dropped, many of them in the middle of something, leave nothing.
func TestConnectionsOpenedAndDropped(t *testing.T) {
	b := start(t)
	if code, err := b.execute("true"); err != nil || code.ExitCode != 0 {
		t.Fatal(code, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	before := runtime.NumGoroutine()
	const head = " HTTP/1.1\r\nHost: localhost\r\n"
	servertest.OpenAndDrop(ctx, t, strings.TrimPrefix(b.url, "http://"), 10_000, []string{
		"", "GET /v1/health" + head, "GET /v1/health" + head + "\r\n", "GET /v1/files/etc" + head + "\r\n", "PUT /v1/files/dropped" + head + "Content-Length: 100\r\n\r\nsome",
		"PUT /v1/files/dropped" + head + "Transfer-Encoding: chunked\r\n\r\nff\r\n", "\x16\x03\x01",
	})
	const (
		preface  = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
		settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
		headers  = "\x00\x00\x01\x01\x04\x00\x00\x00\x01\x83" // :method POST, and no path
		ping     = "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"
		endless  = "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x83" // headers that are to be continued
		huge     = "\xff\xff\xff\x00\x00\x00\x00\x00\x01"
	)
	servertest.OpenAndDrop(ctx, t, b.grpc, 10_000, []string{
		"", preface, preface + settings, preface + settings + headers, preface + settings + ping, preface + settings + endless, preface + settings + huge, "GET / HTTP/1.1\r\n\r\n",
	})
	deadline := time.Now().Add(time.Minute)
	for runtime.NumGoroutine() > before+10 && time.Now().Before(deadline) {
		time.Sleep(50 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before+10 {
		t.Errorf("%d goroutines, %d before", n, before)
	}
	if _, err := b.execute("true"); err != nil {
		t.Error(err)
	}
}

// TestStrangers: connections that ask for nothing keep no client out of either port. The protocol knows no keys: who asks is known.
func TestStrangers(t *testing.T) {
	b := start(t)
	servertest.Attack(t, servertest.Target{Address: strings.TrimPrefix(b.url, "http://"), Good: "GET /v1/health"})
	servertest.Crowd(t, b.grpc, 300, map[string]string{
		"idle sockets": "", "connections without a request": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "half TLS hellos": "\x16\x03\x01\x02\x00",
	}, func() error {
		_, err := b.execute("true")
		return err
	})
}
