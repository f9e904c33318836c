package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"agentvm/images"
)

// progress shows on a terminal how far something that takes long is. Elsewhere it shows nothing, except one line for the download of an image.
// What it shows of other work than images comes after a moment and is gone when it is closed.
type progress struct {
	out   *os.File
	delay time.Duration // before it shows other work than images; see newProgress

	mu     sync.Mutex
	what   string // the last bar's
	began  time.Time
	bars   *mpb.Progress
	bar    *mpb.Bar
	passes bool        // the bar is removed when it is done
	timer  *time.Timer // of waiting
	closed bool
}

// progressDelay keeps what is soon over from flickering.
const progressDelay = time.Second

// newProgress returns a progress, which the caller closes before it prints anything else on the terminal.
func (c *cli) newProgress() *progress { return &progress{out: c.stderr, delay: progressDelay} }

// report is an images.ProgressFunc.
func (p *progress) report(at images.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	what := string(at.Stage) + " " + at.Name
	if what != p.what && !p.onTerminal() && at.Stage == images.StageDownload {
		fmt.Fprintf(p.out, "agentvm: downloading image %s%s\n", at.Name, size(at.Total))
	}
	p.show(what, at.Done, at.Total, false)
}

// working shows how many bytes are done, and of how many when total is known, thus not 0. With neither it shows the time.
func (p *progress) working(what string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.began.IsZero() {
		p.began = time.Now()
	}
	if time.Since(p.began) >= p.delay {
		p.show(what, done, total, true)
	}
}

// waiting shows, after a moment, since when the caller waits for something that does not say how far it is.
func (p *progress) waiting(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(p.delay, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.show(what, 0, 0, true)
	})
}

// onTerminal is called with mu held, as is show.
func (p *progress) onTerminal() bool { return term.IsTerminal(int(p.out.Fd())) }

func (p *progress) show(what string, done, total int64, passes bool) {
	if p.closed || !p.onTerminal() {
		p.what = what
		return
	}
	if p.bars == nil {
		p.bars = mpb.New(mpb.WithOutput(p.out), mpb.WithWidth(60))
	}
	if p.bar == nil || what != p.what {
		p.end()
		p.what, p.passes = what, passes
		name := mpb.PrependDecorators(decor.Name(what, decor.WCSyncSpaceR))
		if total > 0 || !passes {
			p.bar = p.bars.AddBar(total, name, mpb.AppendDecorators(decor.CountersKibiByte("% .1f / % .1f")))
		} else {
			count := decor.Any(func(s decor.Statistics) string {
				if s.Current == 0 {
					return ""
				}
				return bytesText(s.Current) + " "
			})
			p.bar = p.bars.AddSpinner(0, name, mpb.BarWidth(1), mpb.AppendDecorators(count, decor.Elapsed(decor.ET_STYLE_MMSS)))
		}
	}
	if total > 0 {
		p.bar.SetTotal(total, false)
	}
	p.bar.SetCurrent(done)
}

func (p *progress) end() {
	if p.bar != nil {
		p.bar.Abort(p.passes)
	}
}

func size(total int64) string {
	if total <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%.1f MB)", float64(total)/1e6)
}

// close ends the bars and waits until the last of them is drawn. Nothing is shown afterwards. It may be called again.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.closed || p.bars == nil {
		p.closed = true
		return
	}
	p.closed = true
	p.end()
	p.bars.Wait()
}

// counting passes writes on and shows how many bytes there were.
func (p *progress) counting(what string, to io.Writer, total int64) io.Writer {
	return &countingWriter{to: to, progress: p, what: what, total: total}
}

type countingWriter struct {
	to           io.Writer
	progress     *progress
	what         string
	bytes, total int64
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	w.bytes += int64(n)
	w.progress.working(w.what, w.bytes, w.total)
	return n, err
}

// closing closes the progress before the first write, which may be to the same terminal.
func (p *progress) closing(to io.Writer) io.Writer { return &closingWriter{to, p} }

type closingWriter struct {
	to       io.Writer
	progress *progress
}

func (w *closingWriter) Write(b []byte) (int, error) {
	w.progress.close()
	return w.to.Write(b)
}

// fileSize returns the size of a regular file in bytes; 0: it is something else.
func fileSize(f *os.File) int64 {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return info.Size()
}
