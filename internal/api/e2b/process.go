package e2b

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"slices"
	"sync"
	"syscall"
	"time"

	"agentvm/internal/api/live"
	"agentvm/vm"
)

const (
	keepEnded = 30 * time.Second // how long an ended process can be connected to
	chunk     = 32 << 10         // bytes of output in a message
)

// table has the processes of a sandbox.
type table struct {
	mu      sync.Mutex
	last    uint32
	procs   map[uint32]*process
	running sync.WaitGroup
}

// wait returns when every process has ended, or its VM has.
func (t *table) wait() { t.running.Wait() }

// process is a command that a client has started. Its number is the server's, not the guest's.
type process struct {
	pid    uint32
	config processConfig
	tag    string
	pty    bool
	vm     vm.Process

	input *live.Input // what clients send

	done  chan struct{} // closed after all output, when end is set
	end   endEvent
	ended time.Time
	err   error // the VM's, when it has gone

	mu      sync.Mutex
	clients map[*subscriber]struct{}
}

// subscriber is a client that gets the output. One that does not take it makes the process wait, until it is given up.
type subscriber struct {
	frames chan event
	gone   <-chan struct{}
}

type (
	processConfig struct {
		Cmd  string            `json:"cmd"`
		Args []string          `json:"args,omitempty"`
		Envs map[string]string `json:"envs,omitempty"`
		Cwd  string            `json:"cwd,omitempty"`
	}
	size struct {
		Cols uint16 `json:"cols"`
		Rows uint16 `json:"rows"`
	}
	pty struct {
		Size size `json:"size"`
	}
	startRequest struct {
		Process processConfig `json:"process"`
		PTY     *pty          `json:"pty"`
		Tag     string        `json:"tag"`
		Stdin   *bool         `json:"stdin"`
	}
	selector struct {
		PID uint32 `json:"pid"`
		Tag string `json:"tag"`
	}
	selectRequest struct {
		Process selector `json:"process"`
		PTY     *pty     `json:"pty"`
		Input   struct {
			Stdin []byte `json:"stdin"`
			PTY   []byte `json:"pty"`
		} `json:"input"`
		Signal any `json:"signal"` // its name, or its number
	}

	startEvent struct {
		PID uint32 `json:"pid"`
	}
	dataEvent struct {
		Stdout []byte `json:"stdout,omitempty"`
		Stderr []byte `json:"stderr,omitempty"`
		PTY    []byte `json:"pty,omitempty"`
	}
	endEvent struct {
		ExitCode int    `json:"exitCode,omitempty"`
		Exited   bool   `json:"exited,omitempty"`
		Status   string `json:"status,omitempty"`
		Error    string `json:"error,omitempty"`
	}
	event struct {
		Start     *startEvent `json:"start,omitempty"`
		Data      *dataEvent  `json:"data,omitempty"`
		End       *endEvent   `json:"end,omitempty"`
		Keepalive *struct{}   `json:"keepalive,omitempty"`
	}
)

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(b []byte) (int, error) { return f(b) }

// writer gives output to the clients there are.
func (p *process) writer(wrap func([]byte) *dataEvent) io.Writer {
	return writeFunc(func(b []byte) (int, error) {
		for part := range slices.Chunk(b, chunk) {
			e := event{Data: wrap(slices.Clone(part))}
			p.mu.Lock()
			list := slices.Collect(maps.Keys(p.clients))
			p.mu.Unlock()
			for _, c := range list {
				select {
				case c.frames <- e:
				case <-c.gone:
				}
			}
		}
		return len(b), nil
	})
}

func (p *process) subscribe(gone <-chan struct{}) (c *subscriber, leave func()) {
	c = &subscriber{make(chan event, 4), gone}
	p.mu.Lock()
	p.clients[c] = struct{}{}
	p.mu.Unlock()
	return c, func() {
		p.mu.Lock()
		delete(p.clients, c)
		p.mu.Unlock()
	}
}

// newProcess makes a process that may have input.
func newProcess(config processConfig, tag string, terminal, input bool) *process {
	p := &process{config: config, tag: tag, pty: terminal, done: make(chan struct{}), clients: map[*subscriber]struct{}{}}
	p.input = live.NewInput(p.done)
	if !input {
		p.input.End()
	}
	return p
}

// hasInput reports whether clients can send input.
func (p *process) hasInput() bool { return !p.input.Ended() }

// connect gives a command the process's streams.
func (p *process) connect(c *vm.Command) {
	c.Stdout = p.writer(func(b []byte) *dataEvent { return &dataEvent{Stdout: b} })
	c.Stderr = p.writer(func(b []byte) *dataEvent { return &dataEvent{Stderr: b} })
	if p.pty {
		c.Stdout = p.writer(func(b []byte) *dataEvent { return &dataEvent{PTY: b} })
	}
	if p.hasInput() {
		c.Stdin = p.input
	}
}

// arguments are what is run for the SDK's /bin/bash: an image without bash has sh, whose -l and -i mean the same.
func (c *call) arguments(p processConfig) []string {
	args := append([]string{p.Cmd}, p.Args...)
	if p.Cmd == "/bin/bash" {
		if _, err := c.sandbox.vm.Files().Stat(c.live, p.Cmd); errors.Is(err, fs.ErrNotExist) {
			args[0] = "/bin/sh"
		}
	}
	return args
}

func startProcess(c *call, body []byte, out *stream) error {
	q, err := decode[startRequest](body)
	if err != nil {
		return err
	}
	if q.Process.Cmd == "" {
		return &rpcError{invalidArgument, "process.cmd is missing"}
	}
	vars, err := environment(q.Process.Envs)
	if err != nil {
		return err
	}
	dir, err := c.user.path(cmp.Or(q.Process.Cwd, "~"))
	if err != nil {
		return err
	}
	if info, err := c.sandbox.vm.Files().Stat(c.live, dir); q.Process.Cwd != "" && (err != nil || !info.IsDir()) {
		return &rpcError{invalidArgument, fmt.Sprintf("cwd '%.300s' does not exist", dir)}
	} else if err != nil || !info.IsDir() {
		dir = "/"
	}
	p := newProcess(q.Process, q.Tag, q.PTY != nil, q.PTY != nil || q.Stdin == nil || *q.Stdin)
	env := append([]string{"HOME=" + c.user.home, "USER=" + c.user.name, "LOGNAME=" + c.user.name}, c.sandbox.env...)
	command := vm.Command{Args: c.arguments(q.Process), Dir: dir, User: c.user.name, Env: append(env, vars...)}
	p.connect(&command)
	if q.PTY != nil {
		command.Terminal = &vm.Size{Columns: cmp.Or(q.PTY.Size.Cols, 80), Rows: cmp.Or(q.PTY.Size.Rows, 24)}
	}
	timeout, keepalive := timing(c.Header)
	var late <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	subscribed, leave := p.subscribe(c.live.Done())
	defer leave()
	if err := c.sandbox.start(c.live, p, command); err != nil {
		return err
	}
	return p.follow(c, out, subscribed, late, keepalive, true)
}

// start adds a process. It outlives the request.
func (b *sandbox) start(ctx context.Context, p *process, command vm.Command) error {
	t := &b.procs
	t.mu.Lock()
	running := 0
	var first uint32 // of those that have ended
	for pid, old := range t.procs {
		switch {
		case !old.over():
			running++
		case time.Since(old.ended) > keepEnded:
			delete(t.procs, pid)
		case first == 0 || old.ended.Before(t.procs[first].ended):
			first = pid
		}
	}
	if running >= maxProcs {
		t.mu.Unlock()
		return &rpcError{resourceExhausted, fmt.Sprintf("the sandbox has %d processes already", maxProcs)}
	}
	if len(t.procs) >= maxProcs { // one that has ended makes room
		delete(t.procs, first)
	}
	t.last++
	p.pid = t.last
	t.running.Add(1)
	t.mu.Unlock()
	command.Key = processKey(p.pid)
	started, err := b.vm.Start(ctx, command)
	if err != nil {
		t.running.Done()
		return err
	}
	t.add(p, started)
	return nil
}

// add adds a process that runs, which running has counted.
func (t *table) add(p *process, running vm.Process) {
	t.mu.Lock()
	if t.procs == nil {
		t.procs = map[uint32]*process{}
	}
	p.vm = running
	t.procs[p.pid] = p
	t.mu.Unlock()
	go func() {
		defer t.running.Done()
		result, err := running.Wait(context.Background())
		p.err, p.ended = err, time.Now()
		switch {
		case err != nil:
		case result.Signal != 0:
			name := map[int]string{9: "killed", 15: "terminated", 2: "interrupt", 1: "hangup", 11: "segmentation fault", 6: "aborted"}[result.Signal]
			p.end = endEvent{ExitCode: -1, Status: "signal: " + cmp.Or(name, fmt.Sprint(result.Signal))}
			p.end.Error = p.end.Status
		default:
			p.end = endEvent{ExitCode: result.ExitCode, Exited: true, Status: fmt.Sprintf("exit status %d", result.ExitCode)}
			if result.ExitCode != 0 {
				p.end.Error = p.end.Status
			}
		}
		close(p.done)
	}()
}

// follow writes the events of a process until it ends. The end of the client's time kills the process when it is its own.
func (p *process) follow(c *call, out *stream, s *subscriber, late <-chan time.Time, keepalive time.Duration, own bool) error {
	send := func(e event) error {
		if err := out.send(0, map[string]any{"event": e}); err != nil {
			return errCut // the client is gone, or takes nothing
		}
		return nil
	}
	if err := send(event{Start: &startEvent{p.pid}}); err != nil {
		return err
	}
	var silence *time.Timer
	var quiet <-chan time.Time
	if keepalive > 0 {
		silence = time.NewTimer(keepalive)
		defer silence.Stop()
		quiet = silence.C
	}
	for {
		var e event
		select {
		case e = <-s.frames:
		case <-quiet:
			e.Keepalive = &struct{}{}
		case <-late:
			if own {
				_ = p.vm.Kill(c.live)
			}
			return &rpcError{deadlineExceeded, "the time of the request is over"}
		case <-c.live.Done():
			return errCut
		case <-p.done:
			for len(s.frames) > 0 {
				if err := send(<-s.frames); err != nil {
					return err
				}
			}
			if p.err != nil {
				return errCut
			}
			return send(event{End: &p.end})
		}
		if err := send(e); err != nil {
			return err
		}
		if silence != nil {
			silence.Reset(keepalive)
		}
	}
}

// pick returns the process that a client means.
func (c *call) pick(s selector) (*process, error) {
	t := &c.sandbox.procs
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.procs[s.PID]; p != nil && s.PID != 0 {
		return p, nil
	}
	for _, p := range t.procs {
		if s.Tag != "" && p.tag == s.Tag {
			return p, nil
		}
	}
	return nil, &rpcError{notFound, fmt.Sprintf("process with pid %d was not found", s.PID)}
}

func (p *process) over() bool { return isClosed(p.done) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func connectProcess(c *call, body []byte, out *stream) error {
	q, err := decode[selectRequest](body)
	if err != nil {
		return err
	}
	p, err := c.pick(q.Process)
	if err != nil {
		return err
	}
	timeout, keepalive := timing(c.Header)
	var late <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	s, leave := p.subscribe(c.live.Done())
	defer leave()
	return p.follow(c, out, s, late, keepalive, false)
}

func listProcesses(c *call, _ *struct{}) (any, error) {
	t := &c.sandbox.procs
	t.mu.Lock()
	defer t.mu.Unlock()
	list := []map[string]any{}
	for _, pid := range slices.Sorted(maps.Keys(t.procs)) {
		if p := t.procs[pid]; !p.over() {
			one := map[string]any{"config": p.config, "pid": pid}
			if p.tag != "" {
				one["tag"] = p.tag
			}
			list = append(list, one)
		}
	}
	return map[string]any{"processes": list}, nil
}

func updateProcess(c *call, q *selectRequest) (any, error) {
	p, err := c.pick(q.Process)
	if err == nil && q.PTY != nil {
		if !p.pty || q.PTY.Size.Cols == 0 || q.PTY.Size.Rows == 0 {
			return nil, &rpcError{invalidArgument, "the process has no terminal, or its size is none"}
		}
		err = p.vm.Resize(c.live, vm.Size{Columns: q.PTY.Size.Cols, Rows: q.PTY.Size.Rows})
	}
	return struct{}{}, err
}

func sendInput(c *call, q *selectRequest) (any, error) {
	p, err := c.pick(q.Process)
	if err != nil {
		return nil, err
	}
	data := q.Input.Stdin
	if p.pty {
		data = q.Input.PTY
	}
	switch err := p.input.Write(c.live, data); {
	case errors.Is(err, live.ErrInputEnded):
		return nil, &rpcError{"failed_precondition", "the standard input is closed"}
	case errors.Is(err, live.ErrProcessEnded):
		return nil, &rpcError{notFound, "the process has ended"}
	case err != nil:
		return nil, err
	}
	return struct{}{}, nil
}

func sendSignal(c *call, q *selectRequest) (any, error) {
	p, err := c.pick(q.Process)
	if err != nil {
		return nil, err
	}
	if p.over() {
		return nil, &rpcError{notFound, "the process has ended"}
	}
	switch q.Signal {
	case "SIGNAL_SIGKILL", float64(9):
		return struct{}{}, p.vm.Kill(c.live)
	case "SIGNAL_SIGTERM", float64(15):
		if err = p.vm.Signal(c.live, 15); errors.Is(err, syscall.ESRCH) {
			err = &rpcError{notFound, "the process has ended"}
		}
		return struct{}{}, err
	}
	return nil, &rpcError{invalidArgument, "signal: want SIGNAL_SIGTERM or SIGNAL_SIGKILL"}
}

func closeStdin(c *call, q *selectRequest) (any, error) {
	p, err := c.pick(q.Process)
	if err != nil {
		return nil, err
	}
	if p.pty {
		return nil, &rpcError{invalidArgument, "a terminal's input is not closed: send the byte 4"}
	}
	p.input.End()
	return struct{}{}, nil
}

// user is a user of the guest, as its /etc/passwd has it.
type user struct {
	name, home string
	uid, gid   uint32
}

// path returns the absolute path that a client's path means for a user. It is the guest's, in which every path may be named.
func (u user) path(p string) (string, error) {
	for _, r := range []byte(p) {
		if r == 0 {
			return "", fail(http.StatusBadRequest, "a path has a NUL byte")
		}
	}
	switch {
	case p == "" || p == "~":
		p = u.home
	case len(p) > 1 && p[:2] == "~/":
		p = path.Join(u.home, p[2:])
	case p[0] != '/':
		p = path.Join(u.home, p)
	}
	if len(p) > 4096 {
		return "", fail(http.StatusBadRequest, "a path is longer than 4096 bytes")
	}
	return path.Clean(p), nil
}
