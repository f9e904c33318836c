package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestFlood keeps 400 connections open that never show a token: clients still connect, each time, and the log stays small.
func TestFlood(t *testing.T) { onBothDoors(t, flood) }

func flood(t *testing.T) {
	d := startInside(t, Config{}, timing{}, nil)
	stop := make(chan struct{})
	var flooding sync.WaitGroup
	for range 400 {
		flooding.Go(func() {
			for {
				c, err := d.dialStranger()
				if err != nil {
					t.Error(err)
					return
				}
				gone := make(chan struct{})
				go func() { _, _ = c.Read(make([]byte, 1)); close(gone) }()
				select {
				case <-gone:
				case <-stop:
				}
				_ = c.Close()
				<-gone
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	await(t, "the flood", func() bool { log, _ := os.ReadFile(d.paths().log()); return bytes.Contains(log, []byte("is refused")) })
	for i := range 5 {
		c, err := d.store.Connect(t.Context(), "dev")
		if err != nil {
			t.Errorf("client %d: %v", i, err)
			continue
		}
		if _, err := c.Info(t.Context()); err != nil {
			t.Error(err)
		}
		_ = c.Close()
	}
	close(stop)
	flooding.Wait()
	d.stop()
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
	log, err := os.ReadFile(d.paths().log())
	if lines := bytes.Count(log, []byte("refused")); err != nil || lines > 10 {
		t.Errorf("%d lines of refusals, %v", lines, err)
	}
}

func TestRefusalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r := &refusals{logger: slog.New(slog.NewTextHandler(&out, nil)), pause: time.Minute}
		from := &net.TCPAddr{Port: 7}
		for range 1000 {
			r.report(from, errors.New("EOF"))
		}
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		r.report(from, errors.New("wrong token"))
		r.close()
		text := out.String()
		if lines := strings.Count(text, "\n"); lines != 3 || !strings.Contains(text, "count=999") || !strings.Contains(text, "wrong token") {
			t.Errorf("%d lines:\n%s", lines, text)
		}
	})
}
