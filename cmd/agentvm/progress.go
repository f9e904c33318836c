package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"

	"agentvm/images"
)

// progress shows on a terminal how far something that takes long is. Elsewhere it shows nothing, except one line for the download of an image.
// What it shows of other work than images comes after a moment and is gone when it is closed.
type progress struct {
	out   *os.File
	delay time.Duration // before it shows other work than images; see newProgress

	mu     sync.Mutex
	what   string      // the last one
	began  time.Time   // of the first work
	timer  *time.Timer // of waiting
	line   *progressLine
	over   []string // lines that stay, and are not written yet
	stop   chan struct{}
	drawn  chan struct{} // closed when draw has ended; nil: it has not begun
	closed bool
}

// progressLine is what the terminal's last line says.
type progressLine struct {
	what        string
	done, total int64 // bytes; 0: not known
	since       time.Time
	passes      bool // it is removed when it is over
}

// progressPause is the time between two drawings.
const progressPause = 150 * time.Millisecond

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
	if p.line == nil || what != p.what {
		p.end()
		p.what, p.line = what, &progressLine{what: what, since: time.Now(), passes: passes}
	}
	p.line.done = done
	if total > 0 {
		p.line.total = total
	}
	if p.drawn == nil {
		p.stop, p.drawn = make(chan struct{}), make(chan struct{})
		go p.draw()
	}
}

// end is called with mu held.
func (p *progress) end() {
	if p.line != nil && !p.line.passes {
		p.over = append(p.over, p.line.text(time.Now()))
	}
	p.line = nil
}

// draw writes the line again and again, and once more after stop. It writes without mu, because a terminal may take nothing for long.
func (p *progress) draw() {
	defer close(p.drawn)
	tick := time.NewTicker(progressPause)
	defer tick.Stop()
	width := 0 // of what is on the line
	for stopped := false; ; {
		p.mu.Lock()
		lines, last := p.over, ""
		p.over = nil
		if p.line != nil {
			last = p.line.text(time.Now())
		}
		p.mu.Unlock()
		columns, _, err := term.GetSize(int(p.out.Fd()))
		if err != nil || columns < 2 {
			columns = 80
		}
		var text strings.Builder
		write := func(line string) {
			line = ansi.Truncate(line, columns-1, "…")
			cells := ansi.StringWidth(line)
			text.WriteString("\r" + line + strings.Repeat(" ", max(0, min(width, columns-1)-cells)))
			width = cells
		}
		for _, line := range lines {
			write(line)
			text.WriteString("\n")
			width = 0
		}
		if last != "" {
			write(last)
		} else if width > 0 {
			write("")
			text.WriteString("\r")
		}
		_, _ = io.WriteString(p.out, text.String())
		if stopped {
			return
		}
		select {
		case <-tick.C:
		case <-p.stop:
			stopped = true
		}
	}
}

// text is the line at a moment.
func (l *progressLine) text(now time.Time) string {
	what := printable(l.what)
	if l.total > 0 || !l.passes {
		return fmt.Sprintf("%s [%s] %s / %s", what, progressBar(l.done, l.total), binaryText(l.done), binaryText(l.total))
	}
	count := ""
	if l.done > 0 {
		count = bytesText(l.done) + " "
	}
	took := now.Sub(l.since)
	return fmt.Sprintf("%s %c %s%02d:%02d", what, `|/-\`[took/progressPause%4], count, int(took.Minutes()), int(took.Seconds())%60)
}

// progressBar is a bar of 40 characters.
func progressBar(done, total int64) string {
	const width = 40
	n := 0
	if total > 0 {
		n = int(float64(min(max(done, 0), total)) / float64(total) * width)
	}
	if n == width {
		return strings.Repeat("=", width)
	}
	return strings.Repeat("=", n) + ">" + strings.Repeat("-", width-1-n)
}

func binaryText(n int64) string {
	value, unit := float64(n), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, next
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}

func size(total int64) string {
	if total <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%.1f MB)", float64(total)/1e6)
}

// close ends the line and waits until all is drawn. Nothing is shown afterwards. It may be called again.
func (p *progress) close() {
	p.mu.Lock()
	if p.timer != nil {
		p.timer.Stop()
	}
	drawn := p.drawn
	if !p.closed && drawn != nil {
		p.end()
		close(p.stop)
	}
	p.closed = true
	p.mu.Unlock()
	if drawn != nil {
		<-drawn
	}
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
