package daemon

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"agentvm/images"
	"agentvm/vm"
)

// Times of an image's HEALTHCHECK where it names none, as Docker has them, and the shortest, which keep an image from keeping its VM busy.
const (
	healthInterval = 30 * time.Second
	healthTimeout  = 30 * time.Second
	healthRetries  = 3
	healthShortest = time.Second
	healthOutput   = 4 << 10 // bytes of a failed check that are logged
	killTime       = 5 * time.Second
)

// What Info.Health is.
const (
	healthStarting  = "starting"
	healthHealthy   = "healthy"
	healthUnhealthy = "unhealthy"
)

// healthCommand returns what a check runs; nil: the image has none.
func healthCommand(h *images.Healthcheck) []string {
	if h == nil || len(h.Test) < 2 {
		return nil
	}
	switch h.Test[0] {
	case "CMD":
		return h.Test[1:]
	case "CMD-SHELL":
		return []string{"/bin/sh", "-c", h.Test[1]}
	}
	return nil
}

// runHealthcheck starts the goroutine that runs the image's HEALTHCHECK. stop ends it; a check that runs ends with the VM.
func (d *daemon) runHealthcheck(v VM) (stop func()) {
	image := v.Image()
	args := healthCommand(image.Healthcheck)
	if args == nil {
		return func() {}
	}
	d.setHealth(healthStarting)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { d.checkHealth(ctx, v, *image.Healthcheck, args) })
	return func() {
		cancel()
		running.Wait()
		d.setHealth("")
	}
}

func (d *daemon) setHealth(state string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.health = state
}

// checkHealth runs checks until ctx ends. A VM becomes healthy with its first check that succeeds, and unhealthy with some in a row that fail,
// of which those in the start period do not count until one has succeeded.
func (d *daemon) checkHealth(ctx context.Context, v VM, h images.Healthcheck, args []string) {
	pick := func(given, otherwise time.Duration) time.Duration {
		if given <= 0 {
			return otherwise
		}
		return max(given, d.timing.healthShortest)
	}
	interval, timeout, retries := pick(h.Interval, healthInterval), pick(h.Timeout, healthTimeout), h.Retries
	if retries <= 0 {
		retries = healthRetries
	}
	began, state, failures := time.Now(), healthStarting, 0
	for {
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return
		}
		if v.Paused() {
			continue
		}
		err := check(ctx, v, args, timeout)
		if ctx.Err() != nil {
			return
		}
		before := state
		switch {
		case err == nil:
			state, failures = healthHealthy, 0
		case state == healthStarting && time.Since(began) < h.StartPeriod:
		default:
			if failures++; failures >= retries {
				state = healthUnhealthy
			}
		}
		if state != before {
			d.logger.Info("the image's health check", "state", state, "error", err)
			d.setHealth(state)
		}
	}
}

// check runs one check, which fails unless it exits with 0 in time.
func check(ctx context.Context, v VM, args []string, timeout time.Duration) error {
	var output headBuffer
	limited, cancel := context.WithTimeout(ctx, timeout+10*time.Second) // of a guest that does not answer
	defer cancel()
	p, err := v.Start(limited, vm.Command{Args: args, Timeout: timeout, Stdout: &output, Stderr: &output})
	if err != nil {
		return err
	}
	result, err := p.Wait(limited)
	switch {
	case err != nil:
		ending, cancel := context.WithTimeout(context.WithoutCancel(limited), killTime)
		defer cancel()
		_ = p.Kill(ending)
		return err
	case result.TimedOut:
		return fmt.Errorf("it took longer than %v", timeout)
	case result.ExitCode != 0:
		return fmt.Errorf("exit code %d: %.1000q", result.ExitCode, output.bytes())
	}
	return nil
}

// headBuffer keeps the beginning of what is written to it, by several goroutines.
type headBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *headBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buffer.Write(p[:min(len(p), healthOutput-b.buffer.Len())])
	return len(p), nil
}

func (b *headBuffer) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buffer.Bytes())
}
