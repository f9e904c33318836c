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
	"time"

	"connectrpc.com/connect"

	"agentvm/internal/api/live"
	"agentvm/internal/api/rpc"
	pb "agentvm/internal/api/sandboxd/processv1"
	"agentvm/vm"
)

const (
	maxOutput = 4 << 20               // bytes of each stream that Execute keeps; clients take no larger answer by default
	startTime = 20 * time.Millisecond // after which a silent process has started
)

// process is a process of the VM that a client's call lives as long as.
type process = live.Process[struct{}]

// command translates a request.
func (s *Server) command(ctx context.Context, c *pb.ProcessConfig) (out vm.Command, err error) {
	out.Args = c.GetCommand()
	for key, value := range c.GetEnvVars() {
		out.Env = append(out.Env, key+"="+value)
	}
	if _, err := out.Arguments(); err != nil {
		return out, rpc.Errorf(connect.CodeInvalidArgument, "%v", err)
	}
	dir := c.GetCwd()
	if path.IsAbs(dir) { // then in the root as the VM sees it
		root := strings.TrimSuffix(s.root, "/")
		if dir = path.Clean(dir); dir != s.root && !strings.HasPrefix(dir, root+"/") {
			return out, rpc.Errorf(connect.CodePermissionDenied, "cwd %q: %v", c.GetCwd(), errEscapes)
		}
		dir = strings.TrimPrefix(strings.TrimPrefix(dir, root), "/")
	}
	at, info, err := s.resolve(ctx, dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("no directory: %w", fs.ErrNotExist)
	}
	if err != nil {
		return out, fmt.Errorf("cwd %q: %w", c.GetCwd(), err)
	}
	out.Dir = at
	return out, nil
}

// launch starts a process.
func (s *Server) launch(ctx context.Context, p *process, command vm.Command) error {
	err := s.processes.Start(p, func(uint32) (vm.Process, error) { return s.options.VM.Start(ctx, command) })
	switch {
	case errors.Is(err, live.ErrClosed):
		return rpc.Errorf(connect.CodeUnavailable, "the server is ending")
	case errors.Is(err, live.ErrFull):
		return rpc.Errorf(connect.CodeResourceExhausted, "%d processes run already", maxProcesses)
	case errors.Is(err, live.ErrNumbers):
		return rpc.Errorf(connect.CodeResourceExhausted, "%w", err)
	}
	return err
}

// refusalOf is the error of a program that the guest could not execute: it says so itself, in the words of the supervisor, and with an exit code.
func refusalOf(r *vm.Result, stderr []byte) error {
	text, found := bytes.CutPrefix(stderr, []byte("agentvm: "))
	switch {
	case !found || r.Signal != 0:
	case r.ExitCode == 127:
		return rpc.Errorf(connect.CodeNotFound, "%s", strings.ToValidUTF8(strings.TrimSpace(string(text)), "\uFFFD"))
	case r.ExitCode == 126:
		return rpc.Errorf(connect.CodePermissionDenied, "%s", strings.ToValidUTF8(strings.TrimSpace(string(text)), "\uFFFD"))
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
	p := live.New(struct{}{}, false, false)
	if err := s.launch(ctx, p, command); err != nil {
		return nil, err
	}
	defer s.processes.Remove(p)
	r, err := p.Wait(ctx)
	if err != nil {
		p.End(ctx)
		return nil, err
	}
	if len(r.Stdout) == 0 {
		if err := refusalOf(r, r.Stderr); err != nil {
			return nil, err
		}
	}
	if r.StdoutTruncated.Dropped > 0 || r.StderrTruncated.Dropped > 0 {
		return nil, rpc.Errorf(connect.CodeResourceExhausted, "the command wrote more than %d bytes to a stream, and ended with %d: use Start", maxOutput, exitCode(r))
	}
	return &pb.ExecuteResponse{ExitCode: exitCode(r), Stdout: r.Stdout, Stderr: r.Stderr}, nil
}

// start runs a process whose output is sent while it runs.
func (s *Server) start(ctx context.Context, in *pb.StartRequest, send func(*pb.StartResponse) error) error {
	command, err := s.command(ctx, in.GetConfig())
	if err != nil {
		return err
	}
	if in.Pty != nil {
		if command.Terminal, err = sizeOf(in.Pty.Cols, in.Pty.Rows); err != nil {
			return err
		}
	}
	p := live.New(struct{}{}, in.Pty != nil, true)
	p.Connect(&command)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	output, leave := p.Follow(ctx.Done())
	defer leave()
	if err := s.launch(ctx, p, command); err != nil {
		return err
	}
	defer s.processes.Remove(p)
	err = (&answer{process: p, send: send}).follow(ctx, output)
	if !p.Over() {
		cancel() // it may wait for this client
		p.End(ctx)
	}
	return err
}

// answer sends events of a process: first its number, then what it writes.
type answer struct {
	process *process
	send    func(*pb.StartResponse) error
	begun   bool
	refusal []byte // what may be why the program was not executed; begin sends it
}

// begin sends the number, once.
func (a *answer) begin() error {
	if a.begun {
		return nil
	}
	a.begun = true
	err := a.send(&pb.StartResponse{Event: &pb.StartResponse_Init{Init: &pb.InitEvent{ProcessId: int32(a.process.ID)}}})
	if err == nil && a.refusal != nil {
		err = a.send(&pb.StartResponse{Event: &pb.StartResponse_Stderr{Stderr: a.refusal}})
	}
	return err
}

func (a *answer) piece(p live.Piece) error {
	if !a.begun && a.refusal == nil && p.Stderr && bytes.HasPrefix(p.Data, []byte("agentvm: ")) {
		a.refusal = p.Data
		return nil
	}
	if err := a.begin(); err != nil {
		return err
	}
	if p.Stderr {
		return a.send(&pb.StartResponse{Event: &pb.StartResponse_Stderr{Stderr: p.Data}})
	}
	return a.send(&pb.StartResponse{Event: &pb.StartResponse_Stdout{Stdout: p.Data}})
}

// follow sends events until the process ends. A silent process may be one that could not be executed: then the error is the whole answer.
func (a *answer) follow(ctx context.Context, output <-chan live.Piece) error {
	started := time.After(startTime)
	for {
		var err error
		select {
		case p := <-output:
			err = a.piece(p)
		case <-started:
			err = a.begin()
		case <-ctx.Done():
			err = ctx.Err()
		case <-a.process.Done():
			for len(output) > 0 && err == nil {
				err = a.piece(<-output)
			}
			if err == nil {
				err = a.end(ctx)
			}
			return err
		}
		if err != nil {
			return err
		}
	}
}

func (a *answer) end(ctx context.Context) error {
	r, err := a.process.Wait(ctx)
	if err != nil {
		return err
	}
	if !a.begun {
		if err := refusalOf(r, a.refusal); err != nil {
			return err
		}
	}
	if err := a.begin(); err != nil {
		return err
	}
	return a.send(&pb.StartResponse{Event: &pb.StartResponse_Exit{Exit: &pb.ExitEvent{ExitCode: exitCode(r)}}})
}

func sizeOf(columns, rows uint32) (*vm.Size, error) {
	if columns == 0 || rows == 0 || columns > math.MaxUint16 || rows > math.MaxUint16 {
		return nil, rpc.Errorf(connect.CodeInvalidArgument, "a terminal of %d columns and %d rows: want 1 to %d of each", columns, rows, math.MaxUint16)
	}
	return &vm.Size{Columns: uint16(columns), Rows: uint16(rows)}, nil
}

// find returns a process that Start has started.
func (s *Server) find(id int32) (*process, error) {
	if p := s.processes.Find(uint32(id)); p != nil {
		return p, nil
	}
	return nil, rpc.Errorf(connect.CodeNotFound, "there is no process %d", id)
}

func (s *Server) writeStdin(ctx context.Context, in *pb.WriteStdinRequest) (*pb.WriteStdinResponse, error) {
	p, err := s.find(in.ProcessId)
	if err != nil {
		return nil, err
	}
	switch payload := in.Payload.(type) {
	case *pb.WriteStdinRequest_Eof:
		p.Input.End()
	case *pb.WriteStdinRequest_Input:
		if len(payload.Input) > 0 {
			err = p.Input.Write(ctx, payload.Input)
		}
	default:
		err = rpc.Errorf(connect.CodeInvalidArgument, "want input or eof")
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
		return nil, rpc.Errorf(connect.CodeInvalidArgument, "signal %d: want SIGINT, SIGTERM or SIGKILL", in.Signal)
	}
	p, err := s.find(in.ProcessId)
	if err != nil {
		return nil, err
	}
	if err := p.Signal(ctx, int(in.Signal)); err != nil { // the numbers are Linux's
		return nil, err
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
	if !p.Terminal {
		return nil, rpc.Errorf(connect.CodeFailedPrecondition, "process %d has no terminal", in.ProcessId)
	}
	if err := p.Resize(ctx, *size); err != nil {
		return nil, err
	}
	return &pb.ResizeTTYResponse{}, nil
}

// endProcesses asks all processes to end, and then ends them.
func (s *Server) endProcesses(ctx context.Context) {
	s.processes.Close()
	list, _ := s.processes.List()
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
