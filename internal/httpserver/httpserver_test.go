package httpserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestIsHost(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "LOCALHOST:80": true, "127.0.0.1": true, "127.3.4.5:80": true, "[::1]": true, "[::1]:80": true, "vms.example.com": true, "VMS.example.com:443": true,
		"": false, "192.0.2.1": false, "[2001:db8::1]:80": false, "evil.example.com": false, "localhost.example.com": false, "127.0.0.1.example.com": false,
		"localhost:80:80": false, "127.0.0.1@evil": false,
	} {
		if got := IsHost(host, netip.Addr.IsLoopback, "vms.example.com"); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
	if !IsHost("192.0.2.1:80", func(netip.Addr) bool { return true }) {
		t.Error("an address that accept accepts is refused")
	}
}

func TestKeys(t *testing.T) {
	for value, want := range map[string]bool{"0123456789abcdef": true, "0123456789abcde": false, "0123456789 abcdef": false, "0123456789abcdé-": false, "": false} {
		if err := CheckKey(value); (err == nil) != want {
			t.Errorf("%q: %v", value, err)
		}
	}
	keys := Keys{{Name: "a", Value: "0123456789abcdef"}, {Name: "b", Value: "fedcba9876543210"}}
	r := &http.Request{Header: http.Header{"Authorization": {"Bearer fedcba9876543210"}}}
	if name, known := keys.Find(Bearer(r)); name != "b" || !known {
		t.Errorf("found %q, %v", name, known)
	}
	for _, header := range []string{"", "fedcba9876543210", "Bearer ", "bearer fedcba9876543210", "Basic fedcba9876543210", "Bearer fedcba987654321", "Bearer fedcba98765432100"} {
		r.Header.Set("Authorization", header)
		if name, known := keys.Find(Bearer(r)); known {
			t.Errorf("%q is the key %q", header, name)
		}
	}
}

func TestCheckLoopback(t *testing.T) {
	for address, want := range map[string]error{"127.0.0.1:0": nil, "[::1]:80": nil, "0.0.0.0:80": ErrNotLoopback, "192.0.2.1:80": ErrNotLoopback} {
		if err := CheckLoopback(address); !errors.Is(err, want) {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{"", ":80", "localhost:80", "127.0.0.1", "127.0.0.1:http"} {
		if err := CheckLoopback(address); err == nil || errors.Is(err, ErrNotLoopback) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// start serves until the test's end, or until the function that it returns is called, which returns the error of Serve.
func start(t *testing.T, s *Server) (address string, end func() error) {
	t.Helper()
	l, err := ListenLoopback(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.Logger = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l, func(string) {}) }()
	return l.Addr().String(), func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			return errors.New("it serves on")
		}
	}
}

// A request that is being answered when the server ends may end by itself; one that does not has its context ended after the grace.
func TestEnd(t *testing.T) {
	for _, c := range []struct {
		grace time.Duration
		want  error
	}{{time.Minute, nil}, {10 * time.Millisecond, context.Canceled}, {0, context.Canceled}} {
		began, ending, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		address, end := start(t, &Server{MaxConns: 4, Grace: c.grace, Ending: func(context.Context) { close(ending) },
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				close(began)
				<-ending
				if c.want != nil {
					<-r.Context().Done()
				}
				ended <- r.Context().Err()
			})})
		go func() {
			if answer, err := http.Get("http://" + address); err == nil {
				_ = answer.Body.Close()
			}
		}()
		<-began
		if err := end(); err != nil {
			t.Errorf("%v: %v", c.grace, err)
		}
		if err := <-ended; !errors.Is(err, c.want) {
			t.Errorf("%v: the request's context: %v", c.grace, err)
		}
	}
}

// When the listener fails, connections that wait for their next request do not keep the server.
func TestListenerFails(t *testing.T) {
	l, err := ListenLoopback(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Server{MaxConns: 4, Grace: time.Minute, Logger: slog.New(slog.DiscardHandler), Handler: http.NotFoundHandler()}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(t.Context(), l, func(string) {}) }()
	answer, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
	_ = l.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it serves on")
	}
}

func TestPatience(t *testing.T) {
	const stall = 200 * time.Millisecond
	sent := make(chan error, 1)
	address, end := start(t, &Server{MaxConns: 4, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			out, piece := PatientWriter(w, stall), make([]byte, 1<<20)
			for {
				if _, err := out.Write(piece); err != nil {
					sent <- err
					return
				}
			}
		}
		if _, err := io.Copy(io.Discard, PatientBody(w, r, stall)); err != nil {
			http.Error(w, err.Error(), http.StatusRequestTimeout)
		}
	})})
	dial := func(text string) net.Conn {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprint(c, text)
		return c
	}
	stalled := dial("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	if answer, err := http.ReadResponse(bufio.NewReader(stalled), nil); err != nil || answer.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a body that does not come: %v, %v", answer, err)
	}
	slow := dial("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
	for range 10 {
		time.Sleep(stall / 4)
		fmt.Fprint(slow, "x")
	}
	if answer, err := http.ReadResponse(bufio.NewReader(slow), nil); err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("a body that comes slowly: %v, %v", answer, err)
	}
	dial("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if err := <-sent; !strings.Contains(err.Error(), "timeout") {
		t.Error(err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// A client that promises a body and does not send it gets its response, whether the handler reads or not, and its connection ends. A handler that
// reads a stream has no limit.
func TestUnreadBody(t *testing.T) {
	server := httptest.NewServer(withinTime(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			StreamBody(w)
		}
		if r.URL.Path != "/" {
			_, err := io.Copy(io.Discard, r.Body)
			fmt.Fprintf(w, "read %v", err)
			return
		}
		_, _ = w.Write(make([]byte, 64<<10)) // more than net/http keeps until the handler returns
	}), 100*time.Millisecond))
	defer server.Close()
	for path, pause := range map[string]bool{"/": false, "/read": false, "/stream": true} {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n", path)
		if pause {
			time.Sleep(400 * time.Millisecond)
			fmt.Fprint(c, "abc")
		}
		in := bufio.NewReader(c)
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		text, err := io.ReadAll(answer.Body)
		switch {
		case err != nil || answer.StatusCode != http.StatusOK:
			t.Errorf("%s: %s, %v", path, answer.Status, err)
		case path == "/read" && !strings.Contains(string(text), "timeout"):
			t.Errorf("%s: %q", path, text)
		case pause && string(text) != "read <nil>":
			t.Errorf("%s: %q", path, text)
		case !pause:
			if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("%s: the connection stays: %v", path, err)
			}
		}
	}
}
