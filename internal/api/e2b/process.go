package e2b

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"time"

	"connectrpc.com/connect"

	"agentvm/internal/api/live"
	"agentvm/internal/api/rpc"
	"agentvm/vm"
)

const (
	keepEnded = 30 * time.Second // how long an ended process can be connected to
)

// process is a command that a client has started.
type process = live.Process[started]

// started is what a client has said of it.
type started struct {
	config processConfig
	tag    string
}

// newTable makes the table of a sandbox's processes.
func newTable() *live.Table[started] { return &live.Table[started]{Max: maxProcs, Keep: keepEnded} }

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

func startProcess(c *call, q *startRequest, send sender) error {
	if q.Process.Cmd == "" {
		return rpc.Errorf(connect.CodeInvalidArgument, "process.cmd is missing")
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
		return rpc.Errorf(connect.CodeInvalidArgument, "cwd '%.300s' does not exist", dir)
	} else if err != nil || !info.IsDir() {
		dir = "/"
	}
	p := live.New(started{q.Process, q.Tag}, q.PTY != nil, q.PTY != nil || q.Stdin == nil || *q.Stdin)
	env := append([]string{"HOME=" + c.user.home, "USER=" + c.user.name, "LOGNAME=" + c.user.name}, c.sandbox.env...)
	command := vm.Command{Args: c.arguments(q.Process), Dir: dir, User: c.user.name, Env: append(env, vars...)}
	p.Connect(&command)
	if q.PTY != nil {
		command.Terminal = &vm.Size{Columns: cmp.Or(q.PTY.Size.Cols, 80), Rows: cmp.Or(q.PTY.Size.Rows, 24)}
	}
	output, leave := p.Follow(c.live.Done())
	defer leave()
	if err := c.sandbox.start(c.live, p, command); err != nil {
		return err
	}
	return c.follow(p, send, output, true)
}

// start starts a process. It outlives the request.
func (b *sandbox) start(ctx context.Context, p *process, command vm.Command) error {
	err := b.procs.Start(p, func(pid uint32) (vm.Process, error) {
		command.Key = processKey(pid)
		return b.vm.Start(ctx, command)
	})
	if errors.Is(err, live.ErrFull) {
		return rpc.Errorf(connect.CodeResourceExhausted, "the sandbox has %d processes already", maxProcs)
	}
	return err
}

// endOf says how a process has ended.
func endOf(r *vm.Result) *endEvent {
	if r.Signal != 0 {
		name := map[int]string{9: "killed", 15: "terminated", 2: "interrupt", 1: "hangup", 11: "segmentation fault", 6: "aborted"}[r.Signal]
		status := "signal: " + cmp.Or(name, fmt.Sprint(r.Signal))
		return &endEvent{ExitCode: -1, Status: status, Error: status}
	}
	end := &endEvent{ExitCode: r.ExitCode, Exited: true, Status: fmt.Sprintf("exit status %d", r.ExitCode)}
	if r.ExitCode != 0 {
		end.Error = end.Status
	}
	return end
}

// dataOf is a piece of a process's output.
func dataOf(p *process, piece live.Piece) event {
	switch {
	case piece.Stderr:
		return event{Data: &dataEvent{Stderr: piece.Data}}
	case p.Terminal:
		return event{Data: &dataEvent{PTY: piece.Data}}
	}
	return event{Data: &dataEvent{Stdout: piece.Data}}
}

// follow writes the events of a process until it ends. The end of the client's time kills the process when it is its own.
func (c *call) follow(p *process, to sender, output <-chan live.Piece, own bool) error {
	send := func(e event) error {
		if err := to(map[string]any{"event": e}); err != nil {
			return errCut // the client is gone, or takes nothing
		}
		return nil
	}
	if err := send(event{Start: &startEvent{p.ID}}); err != nil {
		return err
	}
	var silence *time.Timer
	var quiet <-chan time.Time
	pause := keepalive(c.Header)
	if pause > 0 {
		silence = time.NewTimer(pause)
		defer silence.Stop()
		quiet = silence.C
	}
	for {
		var e event
		select {
		case piece := <-output:
			e = dataOf(p, piece)
		case <-quiet:
			e.Keepalive = &struct{}{}
		case <-c.live.Done():
			if !errors.Is(c.live.Err(), context.DeadlineExceeded) {
				return errCut
			}
			if own {
				_ = p.Kill(c.Context())
			}
			return rpc.Errorf(connect.CodeDeadlineExceeded, "the time of the request is over")
		case <-p.Done():
			for len(output) > 0 {
				if err := send(dataOf(p, <-output)); err != nil {
					return err
				}
			}
			result, err := p.Wait(c.live)
			if err != nil {
				return errCut
			}
			return send(event{End: endOf(result)})
		}
		if err := send(e); err != nil {
			return err
		}
		if silence != nil {
			silence.Reset(pause)
		}
	}
}

// pick returns the process that a client means.
func (c *call) pick(s selector) (*process, error) {
	if p := c.sandbox.procs.Find(s.PID); p != nil {
		return p, nil
	}
	list, _ := c.sandbox.procs.List()
	for _, p := range list {
		if s.Tag != "" && p.Info.tag == s.Tag {
			return p, nil
		}
	}
	return nil, rpc.Errorf(connect.CodeNotFound, "process with pid %d was not found", s.PID)
}

func connectProcess(c *call, q *selectRequest, send sender) error {
	p, err := c.pick(q.Process)
	if err != nil {
		return err
	}
	output, leave := p.Follow(c.live.Done())
	defer leave()
	return c.follow(p, send, output, false)
}

func listProcesses(c *call, _ *struct{}) (any, error) {
	list := []map[string]any{}
	all, _ := c.sandbox.procs.List()
	for _, p := range all {
		if !p.Over() {
			one := map[string]any{"config": p.Info.config, "pid": p.ID}
			if p.Info.tag != "" {
				one["tag"] = p.Info.tag
			}
			list = append(list, one)
		}
	}
	return map[string]any{"processes": list}, nil
}

func updateProcess(c *call, q *selectRequest) (any, error) {
	p, err := c.pick(q.Process)
	if err == nil && q.PTY != nil {
		if !p.Terminal || q.PTY.Size.Cols == 0 || q.PTY.Size.Rows == 0 {
			return nil, rpc.Errorf(connect.CodeInvalidArgument, "the process has no terminal, or its size is none")
		}
		err = p.Resize(c.live, vm.Size{Columns: q.PTY.Size.Cols, Rows: q.PTY.Size.Rows})
	}
	return struct{}{}, err
}

func sendInput(c *call, q *selectRequest) (any, error) {
	p, err := c.pick(q.Process)
	if err != nil {
		return nil, err
	}
	data := q.Input.Stdin
	if p.Terminal {
		data = q.Input.PTY
	}
	return struct{}{}, p.Input.Write(c.live, data)
}

func sendSignal(c *call, q *selectRequest) (any, error) {
	p, err := c.pick(q.Process)
	if err != nil {
		return nil, err
	}
	if p.Over() {
		return nil, live.ErrProcessEnded
	}
	switch q.Signal {
	case "SIGNAL_SIGKILL", float64(9):
		return struct{}{}, p.Kill(c.live)
	case "SIGNAL_SIGTERM", float64(15):
		return struct{}{}, p.Signal(c.live, 15)
	}
	return nil, rpc.Errorf(connect.CodeInvalidArgument, "signal: want SIGNAL_SIGTERM or SIGNAL_SIGKILL")
}

func closeStdin(c *call, q *selectRequest) (any, error) {
	p, err := c.pick(q.Process)
	if err != nil {
		return nil, err
	}
	if p.Terminal {
		return nil, rpc.Errorf(connect.CodeInvalidArgument, "a terminal's input is not closed: send the byte 4")
	}
	p.Input.End()
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
