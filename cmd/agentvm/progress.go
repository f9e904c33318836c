package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"agentvm/images"
)

// progress shows how an image is fetched: bars on a terminal, else one line for a download. It shows nothing, and costs
// nothing, when there is nothing to fetch.
type progress struct {
	out *os.File

	mu    sync.Mutex
	stage images.Stage
	bars  *mpb.Progress
	bar   *mpb.Bar
}

// report is an images.ProgressFunc.
func (p *progress) report(at images.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at.Stage != p.stage {
		p.begin(at)
	}
	if p.bar == nil {
		return
	}
	if at.Total > 0 {
		p.bar.SetTotal(at.Total, false)
	}
	p.bar.SetCurrent(at.Done)
}

func (p *progress) begin(at images.Progress) {
	p.stage = at.Stage
	if !term.IsTerminal(int(p.out.Fd())) {
		if at.Stage == images.StageDownload {
			fmt.Fprintf(p.out, "agentvm: downloading image %s%s\n", at.Name, size(at.Total))
		}
		return
	}
	if p.bars == nil {
		p.bars = mpb.New(mpb.WithOutput(p.out), mpb.WithWidth(60))
	}
	if p.bar != nil {
		p.bar.Abort(false)
	}
	p.bar = p.bars.AddBar(at.Total,
		mpb.PrependDecorators(decor.Name(string(at.Stage)+" "+at.Name, decor.WCSyncSpaceR)),
		mpb.AppendDecorators(decor.CountersKibiByte("% .1f / % .1f")))
}

func size(total int64) string {
	if total <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%.1f MB)", float64(total)/1e6)
}

// close ends the bars and waits until the last of them is drawn.
func (p *progress) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bars == nil {
		return
	}
	p.bar.Abort(false)
	p.bars.Wait()
}
