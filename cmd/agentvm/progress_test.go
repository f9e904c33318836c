//go:build unix

package main

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/creack/pty"

	"agentvm/images"
)

// shown returns what a progress shows on a terminal.
func shown(t *testing.T, delay time.Duration, use func(p *progress)) string {
	t.Helper()
	screen, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 40, Cols: 100}); err != nil {
		t.Fatal(err)
	}
	text := make(chan string)
	go func() {
		b, _ := io.ReadAll(screen) // ends with EIO when the other end is closed
		text <- string(b)
	}()
	use(&progress{out: tty, delay: delay})
	tty.Close()
	defer screen.Close()
	return <-text
}

func TestProgress(t *testing.T) {
	const short = 50 * time.Millisecond
	for _, test := range []struct {
		name  string
		delay time.Duration
		use   func(p *progress)
		want  []string
		last  string // how it ends
	}{
		{"bytes", short, func(p *progress) {
			w := p.counting("copying", io.Discard, 0)
			for range 40 {
				w.Write(make([]byte, 1000_000))
				time.Sleep(10 * time.Millisecond)
			}
		}, []string{"copying", "MB"}, " \r"},
		{"bytes of a file", short, func(p *progress) {
			w := p.counting("importing", io.Discard, 40<<20)
			for range 40 {
				w.Write(make([]byte, 1<<20))
				time.Sleep(10 * time.Millisecond)
			}
		}, []string{"importing", "/ 40.0 MiB"}, " \r"},
		{"time", short, func(p *progress) { p.waiting("forking"); time.Sleep(400 * time.Millisecond) }, []string{"forking", "00:00"}, " \r"},
		{"image", short, func(p *progress) {
			p.report(images.Progress{Stage: images.StageDownload, Name: "alpine", Done: 1 << 20, Total: 2 << 20})
			time.Sleep(300 * time.Millisecond)
		}, []string{"alpine [====================>-------------------] 1.0 MiB / 2.0 MiB"}, " 1.0 MiB / 2.0 MiB\r\n"},
		{"two stages", short, func(p *progress) {
			p.report(images.Progress{Stage: images.StageDownload, Name: "alpine", Done: 2 << 20, Total: 2 << 20})
			p.report(images.Progress{Stage: images.StageBuild, Name: "alpine", Done: 5, Total: 5})
		}, []string{" [========================================] 2.0 MiB / 2.0 MiB\r\n"}, " 5.0 B / 5.0 B\r\n"},
		{"what is soon over", time.Minute, func(p *progress) {
			p.waiting("forking")
			p.counting("copying", io.Discard, 0).Write([]byte("a"))
		}, nil, ""},
		{"what comes after the end", 2 * time.Second, func(p *progress) {
			p.waiting("forking")
			p.close()
			p.working("copying", 1, 2)
			time.Sleep(3 * time.Second)
			p.working("copying", 2, 2)
		}, nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			text := shown(t, test.delay, func(p *progress) { test.use(p); p.close(); p.close() })
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("the terminal has %q, without %q", text, want)
				}
			}
			if !strings.HasSuffix(text, test.last) {
				t.Errorf("the terminal has %q, which does not end with %q", text, test.last)
			}
			if test.want == nil && text != "" {
				t.Errorf("the terminal has %q, want nothing", text)
			}
		})
	}
}

// TestProgressOfWideNames cuts a line to the terminal by cells, so that it never wraps.
func TestProgressOfWideNames(t *testing.T) {
	text := shown(t, 0, func(p *progress) {
		p.working(strings.Repeat("漢", 100), 1, 2)
		time.Sleep(200 * time.Millisecond)
		p.close()
	})
	for line := range strings.SplitSeq(text, "\r") {
		if width := ansi.StringWidth(line); width > 99 {
			t.Errorf("a line of %d cells in 100 columns: %q", width, line)
		}
	}
	if !strings.Contains(text, "漢…") {
		t.Errorf("the terminal has %q", text)
	}
}

// A pipe gets nothing.
func TestProgressInAPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := &progress{out: w}
	p.working("copying", 1, 2)
	p.waiting("forking")
	time.Sleep(50 * time.Millisecond)
	p.report(images.Progress{Stage: images.StageBuild, Name: "alpine", Done: 1, Total: 2})
	p.close()
	w.Close()
	if b, err := io.ReadAll(r); len(b) > 0 || err != nil {
		t.Errorf("the pipe has %q, %v", b, err)
	}
}
