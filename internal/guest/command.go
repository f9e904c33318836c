//go:build linux

package guest

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

// command is one command of a shell.
type command struct {
	*job
	sh      *shell
	name    string
	readers [2]*quietFile // of the FIFOs for stdout and stderr
	writers [2]*os.File   // without them the readers would see an end before the shell has opened the FIFOs
	input   *os.File      // FIFO that is fed from the host
	cancel  context.CancelFunc
	ready   chan struct{} // closed when the shell has opened the input
	done    chan struct{} // closed when the status is known
	once    sync.Once
}

// prepare makes the files of the command and returns the line for the shell.
func (c *command) prepare(r guestrpc.Request) (line string, err error) {
	sh, base := c.sh, c.sh.dir+"/"+c.name
	for i, suffix := range []string{".out", ".err"} {
		out, err := sh.openFIFO(c.name+suffix, os.O_RDONLY)
		if err != nil {
			return "", err
		}
		c.readers[i] = newQuietFile(out)
		if c.writers[i], err = sh.fifo(c.name+suffix, os.O_WRONLY); err != nil {
			return "", err
		}
	}
	in := "/dev/null"
	source := r.Line + "\n"
	names := []string{"/" + c.name + ".out", "/" + c.name + ".err", "/" + c.name + ".sh"}
	switch {
	case r.Stdin != nil:
		in = base + ".in"
		if c.input, err = sh.fifo(c.name+".in", os.O_RDWR); err != nil {
			return "", err
		}
		if _, err := c.input.Write(r.Input); err != nil {
			return "", err
		}
		names = append(names, "/"+c.name+".in")
	case len(r.Input) > 0:
		in = base + ".in"
		if err := os.WriteFile(in, r.Input, 0o600); err != nil {
			return "", err
		}
		names = append(names, "/"+c.name+".in")
	}
	if err := os.WriteFile(base+".sh", []byte(source), 0o600); err != nil {
		return "", err
	}
	if err := sh.chown(sh.p.user, names...); err != nil {
		return "", err
	}
	status := sh.dir + "/status"
	run := `\command . ` + base + ".sh"
	if r.Stdin != nil {
		run = `{ \command echo o >` + status + "; " + run + "; }"
	}
	return run + " <" + in + " >" + base + ".out 2>" + base + `.err; \command echo $? >` + status + "\n", nil
}

// start reads the output and feeds the input.
func (c *command) start(in *guestrpc.Input) {
	for i, f := range c.readers {
		c.read(i, f)
	}
	if in == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel, c.ready = cancel, make(chan struct{})
	c.sh.s.tasks.Add(1)
	go c.feed(ctx, in)
}

// feed moves input from the host. The FIFO is closed only after the shell has opened it: an open that finds no writer
// would wait for ever.
func (c *command) feed(ctx context.Context, in *guestrpc.Input) {
	defer c.sh.s.tasks.Done()
	defer in.Close()
	b := c.sh.s.files.buffer()
	defer c.sh.s.files.recycle(b)
	for {
		n, err := in.Read(ctx, b[:])
		c.job.input.Add(1)
		if _, werr := c.input.Write(b[:n]); werr != nil || err != nil {
			break
		}
	}
	select {
	case <-c.ready:
	case <-c.done:
	}
	_ = c.input.Close()
}

// opened is called when the shell has opened the streams.
func (c *command) opened() {
	if c.ready != nil {
		close(c.ready)
	}
}

// finish is called with the status, once.
func (c *command) finish(status guestrpc.ExitStatus) {
	close(c.done)
	if c.cancel != nil {
		c.cancel()
		_ = c.input.Close()
	}
	for i, f := range c.writers {
		_ = f.Close()
		_ = os.Remove(c.sh.dir + "/" + c.name + [2]string{".out", ".err"}[i])
	}
	_ = os.Remove(c.sh.dir + "/" + c.name + ".sh")
	_ = os.Remove(c.sh.dir + "/" + c.name + ".in")
	c.end(status)
}

// closeStreams undoes prepare.
func (c *command) closeStreams() {
	for _, f := range c.readers {
		if f != nil {
			_ = f.Close()
		}
	}
	for _, f := range append(c.writers[:], c.input) {
		if f != nil {
			_ = f.Close()
		}
	}
}

// hold waits at most limit for the end, so that a short command's output comes with the first answer.
func (c *command) hold(ctx context.Context, limit time.Duration) (guestrpc.Program, guestrpc.Delivery, error) {
	short, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-c.done:
		d, err := c.Poll(short)
		if err == nil && d.Exit != nil {
			return nil, d, nil
		}
		return c, d, nil
	case <-short.Done():
		if guestrpc.Keeps(ctx) {
			c.Detach()
		} else if ctx.Err() != nil {
			c.Release()
		}
		return c, guestrpc.Delivery{}, nil
	}
}

// Signal signals everything in the shell's process group except the shell, which would otherwise end with the command.
func (c *command) Signal(number int) error {
	select {
	case <-c.done:
		return &capnprpc.Error{Kind: capnprpc.KindSystem, Errno: errno.ESRCH, Message: "the command has ended"}
	default:
		return signalGroup(c.sh.p.pid, syscall.Signal(number))
	}
}

// Kill ends the command together with its shell.
func (c *command) Kill() error { return c.sh.p.Kill() }

// Resize fails, because shells have no terminal.
func (c *command) Resize(size guestrpc.Size) error { return c.sh.p.Resize(size) }

// Detach lets the command continue without the host.
func (c *command) Detach() { c.once.Do(c.abandon) }

// Release is called when the host has dropped the command. While the command runs, its shell cannot run another one, so the
// shell is killed with it.
func (c *command) Release() {
	c.once.Do(func() {
		select {
		case <-c.done:
		default:
			c.sh.p.Release()
		}
		c.abandon()
	})
}
