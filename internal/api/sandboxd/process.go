package sandboxd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"agentvm/internal/api/live"
	pb "agentvm/internal/api/sandboxd/processv1"
	"agentvm/vm"
)

const (
	maxOutput = 4 << 20               // bytes of each stream that Execute keeps; clients take no larger answer by default
	maxChunk  = 32 << 10              // bytes of output in an event
	startTime = 20 * time.Millisecond // after which a silent process has started
)

// process is a process of the VM that a client's call lives as long as.
type process struct {
	vm.Process
	stdin    *live.Input // nil: it has none
	terminal bool
}

// command translates a request.
func (s *Server) command(ctx context.Context, c *pb.ProcessConfig) (out vm.Command, err error) {
	out.Args = c.GetCommand()
	for key, value := range c.GetEnvVars() {
		out.Env = append(out.Env, key+"="+value)
	}
	if _, err := out.Arguments(); err != nil {
		return out, errorf(codeInvalidArgument, "%v", err)
	}
	dir := c.GetCwd()
	if path.IsAbs(dir) { // then in the root as the VM sees it
		root := strings.TrimSuffix(s.root, "/")
		if dir = path.Clean(dir); dir != s.root && !strings.HasPrefix(dir, root+"/") {
			return out, errorf(codePermissionDenied, "cwd %q: %v", c.GetCwd(), errEscapes)
		}
		dir = strings.TrimPrefix(strings.TrimPrefix(dir, root), "/")
	}
	at, info, err := s.resolve(ctx, dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("no directory: %w", fs.ErrNotExist)
	}
	if err != nil {
		return out, errorf(codeOf(err), "cwd %q: %v", c.GetCwd(), err)
	}
	out.Dir = at
	return out, nil
}

func codeOf(err error) code {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		return codeNotFound
	case errors.Is(err, fs.ErrPermission):
		return codePermissionDenied
	case errors.Is(err, fs.ErrInvalid):
		return codeInvalidArgument
	case errors.Is(err, context.Canceled):
		return codeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return codeDeadlineExceeded
	}
	return codeInternal
}

// launch starts a process under a number. release takes that back.
func (s *Server) launch(ctx context.Context, command vm.Command) (p *process, id int32, release func(), err error) {
	p = &process{terminal: command.Terminal != nil}
	p.stdin, _ = command.Stdin.(*live.Input)
	s.mu.Lock()
	switch {
	case s.stopping.Load():
		err = errorf(codeUnavailable, "the server is ending")
	case len(s.processes) >= maxProcesses:
		err = errorf(codeResourceExhausted, "%d processes run already", maxProcesses)
	case s.last == math.MaxInt32:
		err = errorf(codeResourceExhausted, "there are no numbers for processes any more: start the server again")
	default:
		s.last++
		id = s.last
		s.processes[id] = nil // it has a place, and no process yet
	}
	s.mu.Unlock()
	if err != nil {
		return nil, 0, nil, err
	}
	release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.processes, id)
	}
	if p.Process, err = s.options.VM.Start(ctx, command); err != nil {
		release()
		return nil, 0, nil, errorf(codeOf(err), "%v", err)
	}
	s.mu.Lock()
	s.processes[id] = p
	s.mu.Unlock()
	return p, id, release, nil
}

// wait waits for a process's end, and ends it when the client goes.
func (p *process) wait(ctx context.Context) (*vm.Result, error) {
	result, err := p.Wait(ctx)
	if err == nil {
		return result, nil
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	if killed := p.Kill(late); killed == nil {
		_, _ = p.Wait(late)
	}
	return nil, errorf(codeOf(err), "%v", err)
}

// refusalOf is the error of a program that the guest could not execute: it says so itself, in the words of the supervisor, and with an exit code.
func refusalOf(r *vm.Result, stderr []byte) error {
	text, found := bytes.CutPrefix(stderr, []byte("agentvm: "))
	switch {
	case !found || r.Signal != 0:
	case r.ExitCode == 127:
		return errorf(codeNotFound, "%s", strings.ToValidUTF8(strings.TrimSpace(string(text)), "\uFFFD"))
	case r.ExitCode == 126:
		return errorf(codePermissionDenied, "%s", strings.ToValidUTF8(strings.TrimSpace(string(text)), "\uFFFD"))
	}
	return nil
}

func exitCode(r *vm.Result) int32 {
	if r.Signal != 0 {
		return -1
	}
	return int32(r.ExitCode)
}

// execute runs a process to its end.
func (s *Server) execute(ctx context.Context, in *pb.ExecuteRequest) (*pb.ExecuteResponse, error) {
	command, err := s.command(ctx, in.GetConfig())
	if err != nil {
		return nil, err
	}
	command.MaxOutput = maxOutput
	p, _, release, err := s.launch(ctx, command)
	if err != nil {
		return nil, err
	}
	defer release()
	r, err := p.wait(ctx)
	if err != nil {
		return nil, err
	}
	if len(r.Stdout) == 0 {
		if err := refusalOf(r, r.Stderr); err != nil {
			return nil, err
		}
	}
	if r.StdoutTruncated.Dropped > 0 || r.StderrTruncated.Dropped > 0 {
		return nil, errorf(codeResourceExhausted, "the command wrote more than %d bytes to a stream, and ended with %d: use Start", maxOutput, exitCode(r))
	}
	return &pb.ExecuteResponse{ExitCode: exitCode(r), Stdout: r.Stdout, Stderr: r.Stderr}, nil
}

// start runs a process whose output is sent while it runs.
func (s *Server) start(ctx context.Context, in *pb.StartRequest, send func(proto.Message) error) error {
	command, err := s.command(ctx, in.GetConfig())
	if err != nil {
		return err
	}
	if in.Pty != nil {
		if command.Terminal, err = sizeOf(in.Pty.Cols, in.Pty.Rows); err != nil {
			return err
		}
	}
	over := make(chan struct{})
	defer close(over)
	out := &output{ctx: ctx, to: send, wrote: make(chan struct{}), begun: make(chan struct{})}
	command.Stdin = live.NewInput(over)
	command.Stdout = writer(func(p []byte) error {
		return out.write(p, false, func(b []byte) *pb.StartResponse { return &pb.StartResponse{Event: &pb.StartResponse_Stdout{Stdout: b}} })
	})
	command.Stderr = writer(func(p []byte) error { return out.write(p, true, stderrEvent) })
	p, id, release, err := s.launch(ctx, command)
	if err != nil {
		return err
	}
	defer release()
	timer := time.NewTimer(startTime)
	defer timer.Stop()
	select {
	case <-p.Done(): // perhaps it could not be executed: then the error is the whole answer
	case <-out.wrote:
	case <-timer.C:
	case <-ctx.Done():
	}
	select {
	case <-p.Done():
		if r, err := p.Wait(ctx); err == nil && out.refusal != nil {
			if err := refusalOf(r, out.refusal); err != nil {
				return err
			}
			if err := out.begin(id); err != nil {
				return err
			}
			return out.send(&pb.StartResponse{Event: &pb.StartResponse_Exit{Exit: &pb.ExitEvent{ExitCode: exitCode(r)}}})
		}
	default:
	}
	beginErr := out.begin(id)
	r, err := p.wait(ctx)
	if err = errors.Join(beginErr, err); err != nil {
		return err
	}
	return out.send(&pb.StartResponse{Event: &pb.StartResponse_Exit{Exit: &pb.ExitEvent{ExitCode: exitCode(r)}}})
}

func stderrEvent(b []byte) *pb.StartResponse {
	return &pb.StartResponse{Event: &pb.StartResponse_Stderr{Stderr: b}}
}

func sizeOf(columns, rows uint32) (*vm.Size, error) {
	if columns == 0 || rows == 0 || columns > math.MaxUint16 || rows > math.MaxUint16 {
		return nil, errorf(codeInvalidArgument, "a terminal of %d columns and %d rows: want 1 to %d of each", columns, rows, math.MaxUint16)
	}
	return &vm.Size{Columns: uint16(columns), Rows: uint16(rows)}, nil
}

type writer func([]byte) error

func (w writer) Write(p []byte) (int, error) {
	if err := w(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// output sends events: first the process's number, then what it writes. A client that does not read makes the process wait.
type output struct {
	ctx   context.Context
	to    func(proto.Message) error
	once  sync.Once
	wrote chan struct{} // closed when there is output that waits for begin
	begun chan struct{} // closed by begin

	mu      sync.Mutex
	ready   bool   // begun
	refusal []byte // what may be why the program was not executed; begin sends it
}

func (o *output) write(p []byte, stderr bool, event func([]byte) *pb.StartResponse) error {
	o.mu.Lock()
	if !o.ready && stderr && o.refusal == nil && len(p) <= maxChunk && bytes.HasPrefix(p, []byte("agentvm: ")) {
		o.refusal = bytes.Clone(p)
		o.mu.Unlock()
		return nil
	}
	o.mu.Unlock()
	o.once.Do(func() { close(o.wrote) })
	select {
	case <-o.begun:
	case <-o.ctx.Done():
		return o.ctx.Err()
	}
	for len(p) > 0 {
		n := min(len(p), maxChunk)
		if err := o.send(event(p[:n])); err != nil { // the message is encoded when send returns
			return err
		}
		p = p[n:]
	}
	return nil
}

func (o *output) send(event *pb.StartResponse) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.to(event)
}

func (o *output) begin(id int32) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer close(o.begun)
	o.ready = true
	err := o.to(&pb.StartResponse{Event: &pb.StartResponse_Init{Init: &pb.InitEvent{ProcessId: id}}})
	if err == nil && o.refusal != nil {
		err = o.to(stderrEvent(o.refusal))
	}
	return err
}

// find returns a process that Start has started.
func (s *Server) find(id int32) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.processes[id]; p != nil {
		return p, nil
	}
	return nil, errorf(codeNotFound, "there is no process %d", id)
}

// inputError is what a client gets for an error of an input.
func inputError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, live.ErrInputEnded):
		return errorf(codeFailedPrecondition, "its standard input was ended")
	case errors.Is(err, live.ErrProcessEnded):
		return errorf(codeNotFound, "the process has ended")
	}
	return errorf(codeOf(err), "%v", err)
}

func (s *Server) writeStdin(ctx context.Context, in *pb.WriteStdinRequest) (*pb.WriteStdinResponse, error) {
	p, err := s.find(in.ProcessId)
	if err != nil {
		return nil, err
	}
	if p.stdin == nil {
		return nil, errorf(codeFailedPrecondition, "process %d has no standard input", in.ProcessId)
	}
	switch payload := in.Payload.(type) {
	case *pb.WriteStdinRequest_Eof:
		p.stdin.End()
	case *pb.WriteStdinRequest_Input:
		if len(payload.Input) > 0 {
			err = inputError(p.stdin.Write(ctx, payload.Input))
		}
	default:
		err = errorf(codeInvalidArgument, "want input or eof")
	}
	if err != nil {
		return nil, err
	}
	return &pb.WriteStdinResponse{}, nil
}

func (s *Server) sendSignal(ctx context.Context, in *pb.SendSignalRequest) (*pb.SendSignalResponse, error) {
	switch in.Signal {
	case pb.Signal_SIGNAL_SIGINT, pb.Signal_SIGNAL_SIGTERM, pb.Signal_SIGNAL_SIGKILL:
	default:
		return nil, errorf(codeInvalidArgument, "signal %d: want SIGINT, SIGTERM or SIGKILL", in.Signal)
	}
	p, err := s.find(in.ProcessId)
	if err != nil {
		return nil, err
	}
	if err := p.Signal(ctx, int(in.Signal)); err != nil { // the numbers are Linux's
		return nil, errorf(codeOf(err), "%v", err)
	}
	return &pb.SendSignalResponse{}, nil
}

func (s *Server) resize(ctx context.Context, in *pb.ResizeTTYRequest) (*pb.ResizeTTYResponse, error) {
	size, err := sizeOf(in.Cols, in.Rows)
	if err != nil {
		return nil, err
	}
	p, err := s.find(in.ProcessId)
	if err != nil {
		return nil, err
	}
	if !p.terminal {
		return nil, errorf(codeFailedPrecondition, "process %d has no terminal", in.ProcessId)
	}
	if err := p.Resize(ctx, *size); err != nil {
		return nil, errorf(codeOf(err), "%v", err)
	}
	return &pb.ResizeTTYResponse{}, nil
}

// endProcesses asks all processes to end, and then ends them.
func (s *Server) endProcesses(ctx context.Context) {
	s.mu.Lock()
	list := make([]*process, 0, len(s.processes))
	for _, p := range s.processes {
		if p != nil {
			list = append(list, p)
		}
	}
	s.mu.Unlock()
	var all sync.WaitGroup
	for _, p := range list {
		all.Go(func() {
			term, cancel := context.WithTimeout(ctx, termTime)
			defer cancel()
			_ = p.Signal(term, int(pb.Signal_SIGNAL_SIGTERM))
			select {
			case <-p.Done():
			case <-term.Done():
				_ = p.Kill(ctx)
			}
		})
	}
	all.Wait()
}
