package guestrpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// tape is the host's end of a guest's port that keeps what went each way.
type tape struct {
	net.Conn
	mu             sync.Mutex
	toHost, toPort []byte
}

func (c *tape) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.toHost = append(c.toHost, b[:n]...)
	return n, err
}

func (c *tape) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.toPort = append(c.toPort, b...)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// recordSession is a session with something of everything under way at its end.
func recordSession(t *testing.T) (toPort, toHost []byte) {
	host, port := net.Pipe()
	serveOn(t, port, &talker{})
	c := &tape{Conn: host}
	client, err := Dial(t.Context(), c, ClientConfig{HelloInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Start(t.Context(), StartParams{Hostname: "h", Env: []string{"A=1"}, Restored: &Restored{Entropy: make([]byte, 32)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Exec(t.Context(), ExecParams{Args: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := client.Exec(t.Context(), ExecParams{Args: []string{"run"}, Stdin: strings.NewReader("input"), Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Sockets(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.toPort), bytes.Clone(c.toHost)
}

// talker is a guest whose programs read input and have some output, then run until they are released or detached.
type talker struct {
	echo
	mu           sync.Mutex
	killed, kept int
}

func (g *talker) Start(p StartParams, log func(level slog.Level, text string)) (GuestInfo, error) {
	if log != nil {
		go log(0, strings.Repeat("started ", 20)) // ends with the session, which does not wait for it
	}
	return GuestInfo{Release: "6.12"}, nil
}

func (g *talker) Exec(ctx context.Context, r Request) (Program, Delivery, error) {
	if r.Args[0] != "run" {
		return nil, Delivery{Stdout: []byte(r.Args[0]), Exit: &ExitStatus{}}, nil
	}
	if r.Stdin != nil {
		go func() {
			defer r.Stdin.Close()
			for err := error(nil); err == nil; {
				_, err = r.Stdin.Read(context.Background(), make([]byte, 3))
			}
		}()
	}
	return &talk{g: g}, Delivery{Stdout: bytes.Repeat([]byte("begun "), 20)}, nil
}

// ends waits until both programs have been released or detached.
func (g *talker) ends(t *testing.T) (killed, kept int) {
	for begin := time.Now(); time.Since(begin) < 10*time.Second; time.Sleep(time.Millisecond) {
		g.mu.Lock()
		killed, kept = g.killed, g.kept
		g.mu.Unlock()
		if killed+kept == 2 {
			return killed, kept
		}
	}
	t.Error("not all programs have been let go")
	return killed, kept
}

type talk struct {
	forever
	g *talker
}

func (p *talk) Release() { p.g.mu.Lock(); defer p.g.mu.Unlock(); p.g.killed++ }

func (p *talk) Detach() { p.g.mu.Lock(); defer p.g.mu.Unlock(); p.g.kept++ }

// TestTakeOver breaks a session off after each byte, in either direction, as when a machine is restored whose guest waits for the rest
// of a message, or for the host to take the rest of one. The next host sends one hello, and is answered.
func TestTakeOver(t *testing.T) {
	toPort, toHost := recordSession(t)
	type cut struct{ said, heard int } // how much of each the old host has
	var cuts []cut
	step := 1
	if testing.Short() {
		step = 7
	}
	for n := 0; n <= len(toPort); n += step {
		cuts = append(cuts, cut{n, -1})
	}
	for n := 0; n <= len(toHost)-helloSize; n += step {
		cuts = append(cuts, cut{len(toPort), n})
	}
	var wg sync.WaitGroup
	free := make(chan struct{}, 16)
	for _, tt := range cuts {
		for _, keep := range []bool{false, true} {
			free <- struct{}{}
			wg.Go(func() {
				defer func() { <-free }()
				if err := takeOver(t, toPort[:tt.said], tt.heard, keep); err != nil {
					t.Errorf("after %d bytes to the guest and %d from it: %v", tt.said, tt.heard, err)
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d cuts", len(cuts))
}

// takeOver has an old host send something, and receive as many bytes as the guest sends meanwhile (-1) or a number of them.
func takeOver(t *testing.T, said []byte, heard int, keep bool) error {
	host, port := net.Pipe()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	guest, served := &talker{}, make(chan error, 1)
	go func() { served <- Serve(ctx, port, guest, nil) }()
	defer func() { stop(); <-served }()
	if err := oldHost(host, said, heard); err != nil {
		return err
	}
	c, err := Dial(ctx, unclosed{host}, ClientConfig{HelloInterval: time.Hour, KeepPrograms: keep})
	if err != nil {
		return fmt.Errorf("hello: %w", err)
	}
	defer func() { _ = c.Close() }()
	if info, err := c.Start(ctx, StartParams{}); err != nil || info.Release != "6.12" {
		return fmt.Errorf("start: %+v, %w", info, err)
	}
	var out bytes.Buffer
	p, err := c.Exec(ctx, ExecParams{Args: []string{"hello"}, Stdout: &out})
	if err != nil {
		return fmt.Errorf("exec: %w", err)
	}
	if _, err := p.Wait(ctx); err != nil || out.String() != "hello" {
		return fmt.Errorf("exec: %q, %w", out.String(), err)
	}
	return nil
}

// TestKeepPrograms: running programs end or continue, as asked for, when another host says hello.
func TestKeepPrograms(t *testing.T) {
	for _, tt := range []struct {
		name         string
		keep         bool
		left         []byte // of a message, when the first host broke off
		killed, kept int
	}{
		{"killed", false, nil, 2, 0},
		{"kept", true, nil, 0, 2},
		{"kept in a header", true, []byte{0, 0, 0}, 0, 2},
		{"kept in a message", true, []byte{0, 0, 0, 0, 200, 0, 0, 0, 1, 2, 3}, 0, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, port := net.Pipe()
			guest := &talker{}
			serveOn(t, port, guest)
			old, err := Dial(t.Context(), unclosed{host}, ClientConfig{})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if _, err := old.Exec(t.Context(), ExecParams{Args: []string{"run"}}); err != nil {
					t.Fatal(err)
				}
			}
			_ = host.SetReadDeadline(time.Now()) // the old host vanishes without a word
			<-old.Done()
			_ = host.SetDeadline(time.Time{})
			_, _ = host.Write(tt.left)
			c, err := Dial(t.Context(), host, ClientConfig{KeepPrograms: tt.keep, HelloInterval: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Start(t.Context(), StartParams{}); err != nil {
				t.Fatal(err)
			}
			if killed, kept := guest.ends(t); killed != tt.killed || kept != tt.kept {
				t.Errorf("%d programs killed, %d kept", killed, kept)
			}
			_, _ = c.Close(), old.Close()
		})
	}
}

// oldHost returns when the guest has taken said and has sent its whole answer, or as many bytes after its hello as heard. In the
// second case the guest may wait in the middle of a message, and may not have taken all of said. Like any host it waits for the answer
// to its hello.
func oldHost(host net.Conn, said []byte, heard int) error {
	if _, err := io.ReadFull(host, make([]byte, helloSize)); err != nil {
		return err
	}
	if len(said) > helloSize && (heard < 0 || heard >= helloSize) {
		if _, err := host.Write(said[:helloSize]); err != nil {
			return err
		}
		if _, err := io.ReadFull(host, make([]byte, helloSize)); err != nil {
			return err
		}
		said, heard = said[helloSize:], max(heard-helloSize, -1)
	} else {
		said = said[:min(len(said), helloSize)]
	}
	written := make(chan error, 1)
	go func() { _, err := host.Write(said); written <- err }()
	if heard >= 0 {
		// Bytes that are sent too early end the old session: then there may be fewer to receive.
		_ = host.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		_, _ = io.ReadFull(host, make([]byte, heard))
		_ = host.SetWriteDeadline(time.Now().Add(time.Millisecond))
		<-written
		return host.SetDeadline(time.Time{})
	}
	drained := make(chan struct{})
	go func() { defer close(drained); _, _ = io.Copy(io.Discard, host) }()
	err := <-written
	_ = host.SetReadDeadline(time.Now().Add(time.Millisecond))
	<-drained
	return errors.Join(err, host.SetReadDeadline(time.Time{}))
}
