package mcp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/internal/api/agenttool"
	"agentvm/vm"
)

const (
	// defaultYield is how long exec waits for a command before it leaves it running: less than the 60 s that some clients give a call.
	defaultYield = 45 * time.Second
	// maxYield bounds what a call may wait.
	maxYield = time.Hour
	// progressTime is how often a client learns that a command runs on.
	progressTime = time.Second
)

type execInput struct {
	VM         string            `json:"vm,omitempty" jsonschema:"the VM; default: the server's"`
	Command    string            `json:"command" jsonschema:"shell source"`
	Cwd        string            `json:"cwd,omitempty" jsonschema:"working directory, absolute"`
	Env        map[string]string `json:"env,omitempty" jsonschema:"variables in addition to the VM's"`
	User       string            `json:"user,omitempty" jsonschema:"name, uid, name:group or uid:gid; default: the image's, or root"`
	Stdin      string            `json:"stdin,omitempty" jsonschema:"standard input, which ends after it unless interactive is set"`
	Interact   bool              `json:"interactive,omitempty" jsonschema:"keep standard input open for process, action write"`
	Background bool              `json:"background,omitempty" jsonschema:"return at once, with the id of the process"`
	Yield      *float64          `json:"yield_seconds,omitempty" jsonschema:"return after this number of seconds when the command still runs; default 45"`
	Timeout    float64           `json:"timeout_seconds,omitempty" jsonschema:"kill the command and all it has started after this number of seconds; default never"`
	MaxOutput  int               `json:"max_output,omitempty" jsonschema:"bytes of output in the result, 64 to 40000; default 16000"`
}

// seconds converts what a client gives, between 0 and a bound.
func seconds(name string, n float64, most time.Duration) (time.Duration, error) {
	if n < 0 || n > most.Seconds() || n != n {
		return 0, fmt.Errorf("%s %g: want 0 to %g", name, n, most.Seconds())
	}
	return time.Duration(n * float64(time.Second)), nil
}

func yieldTime(n *float64, standard time.Duration) (time.Duration, error) {
	if n == nil {
		return standard, nil
	}
	return seconds("yield_seconds", *n, maxYield)
}

func (s *Server) exec(ctx context.Context, req *sdk.CallToolRequest, in execInput) (*sdk.CallToolResult, *processOutput, error) {
	limit, err := budget(in.MaxOutput)
	if err != nil {
		return nil, nil, err
	}
	yield, err := yieldTime(in.Yield, defaultYield)
	if err != nil {
		return nil, nil, err
	}
	command := vm.Command{Line: in.Command, Dir: in.Cwd, User: in.User}
	if command.Timeout, err = seconds("timeout_seconds", in.Timeout, 365*24*time.Hour); err != nil {
		return nil, nil, err
	}
	if strings.TrimSpace(in.Command) == "" {
		return nil, nil, errors.New("command is empty")
	}
	if command.Dir == "" && s.name(in.VM) == s.config.Default {
		command.Dir = s.config.Dir
	}
	for key, value := range in.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.ContainsRune(value, 0) {
			return nil, nil, fmt.Errorf("env %q: want a name without \"=\", and no NUL", key)
		}
		command.Env = append(command.Env, key+"="+value)
	}
	slices.Sort(command.Env)
	if in.Background {
		yield = 0
	}
	v, name, err := s.open(ctx, req, in.VM)
	if err != nil {
		return nil, nil, err
	}
	j, err := s.startJob(ctx, v, command, vm.JobOptions{NoInput: in.Stdin == "" && !in.Interact, Label: "mcp"})
	if err != nil {
		return nil, nil, err
	}
	if in.Stdin != "" {
		s.feed(name, j.ID(), []byte(in.Stdin), !in.Interact)
	}
	began := time.Now()
	out, err := s.await(ctx, req, j, yield, limit)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
		agenttool.Kill(ctx, j)
	}
	if err != nil {
		_ = v.Close()
		return nil, nil, err
	}
	out.VM, out.Seconds = name, float64(time.Since(began).Milliseconds())/1000
	if out.Running || out.Omitted != nil || out.Next != out.Total {
		out.Process = j.ID()
		_ = v.Close() // the job stays, which is why it is not closed
	} else {
		s.running.Go(func() { forget(ctx, v, j) }) // the client need not wait; the call is one of those that run
	}
	return text(out.String()), out, nil
}

// startJob starts a job. When ctx ends meanwhile, which a boot or a pause of the VM can make long, the job is killed as soon as it runs. After an error
// the connection is closed, here or later.
func (s *Server) startJob(ctx context.Context, v VM, c vm.Command, o vm.JobOptions) (vm.Job, error) {
	type started struct {
		job vm.Job
		err error
	}
	result := make(chan started)
	s.running.Go(func() { // the call is one of those that run
		starting, cancel := context.WithCancel(context.Background())
		defer cancel()
		defer context.AfterFunc(s.ctx, func() { time.AfterFunc(agenttool.KillTime, cancel) })()
		j, err := v.StartJob(starting, c, o)
		select {
		case result <- started{j, err}:
			return
		case <-ctx.Done():
		}
		if err == nil {
			agenttool.Kill(ctx, j)
		}
		_ = v.Close()
	})
	select {
	case r := <-result:
		if r.err != nil {
			_ = v.Close()
		}
		return r.job, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// forget removes a job that has ended and of which the client has all, and closes the connection.
func forget(ctx context.Context, v VM, j vm.Job) {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), agenttool.KillTime)
	defer cancel()
	_, _, _ = j.Remove(late), j.Close(), v.Close()
}

// feed passes input on to a job, over a connection of its own, for as long as the program takes to read it, also after the call that gave it.
func (s *Server) feed(name, id string, data []byte, end bool) {
	s.running.Go(func() { // the call is one of those that run
		v, err := s.config.VMs.Open(s.ctx, name, func(string) {})
		if err != nil {
			return
		}
		defer v.Close()
		j, err := v.Job(s.ctx, id)
		if err != nil {
			return // it has ended, and was removed
		}
		_ = j.Input(s.ctx, data, end) // the program's end shows in its output
	})
}

// await waits for a job's end, at most for a time, and returns the beginning and the end of its output.
func (s *Server) await(ctx context.Context, req *sdk.CallToolRequest, j vm.Job, yield time.Duration, limit int) (*processOutput, error) {
	wait, cancel := context.WithTimeout(ctx, yield)
	defer cancel()
	if req.Params.GetProgressToken() != nil {
		reporting := make(chan struct{})
		go func() { defer close(reporting); s.report(wait, req, j) }()
		defer func() { cancel(); <-reporting }()
	}
	began := time.Now()
	read, err := agenttool.Await(ctx, wait, j, 0, limit)
	if err != nil {
		return nil, err
	}
	out := &processOutput{Total: uint64(read.Total)}
	out.add(read.Head)
	if read.Tail != nil {
		if read.Tail.From > read.Head.Next {
			out.omit(read.Head.Next, read.Tail.From)
		}
		out.add(*read.Tail)
	}
	out.finish(read.End, read.Err, time.Since(began))
	return out, nil
}

// report says every second how much a job has written, until ctx ends.
func (s *Server) report(ctx context.Context, req *sdk.CallToolRequest, j vm.Job) {
	ticker := time.NewTicker(progressTime)
	defer ticker.Stop()
	for done := 1.0; ; done++ {
		select {
		case <-ticker.C:
			if info, err := j.Info(ctx); err == nil {
				s.progress(ctx, req, done, fmt.Sprintf("runs, %d bytes of output", info.OutputBytes))
			}
		case <-ctx.Done():
			return
		}
	}
}

type processInput struct {
	VM        string   `json:"vm,omitempty" jsonschema:"the VM; default: the server's"`
	Action    string   `json:"action"`
	Process   string   `json:"process,omitempty" jsonschema:"id of the process, except for list"`
	From      uint64   `json:"from,omitempty" jsonschema:"the first byte of output to return: next of the previous result; default 0, the beginning"`
	MaxOutput int      `json:"max_output,omitempty" jsonschema:"bytes of output in the result, 64 to 40000; default 16000"`
	Yield     *float64 `json:"yield_seconds,omitempty" jsonschema:"how long to wait for the process to end, or to write max_output bytes; default 0, with write 1"`
	Input     string   `json:"input,omitempty" jsonschema:"for write: text for standard input"`
	EndInput  bool     `json:"end_input,omitempty" jsonschema:"for write: standard input ends after it"`
	Signal    int      `json:"signal,omitempty" jsonschema:"for kill: a Linux signal to send to the process group, such as 2 or 15; default: kill it and all it has started"`
}

// processList is how many processes are listed; a VM keeps a hundred that have ended.
const processList = 200

// maxCommand bounds the text of a listed command, in bytes.
const maxCommand = 200

type listedProcess struct {
	Process  string    `json:"process"`
	Command  string    `json:"command"`
	Running  bool      `json:"running"`
	ExitCode *int      `json:"exit_code,omitempty"`
	Started  time.Time `json:"started"`
	Total    uint64    `json:"bytes_total"`
}

// processResult has a list, or one process.
type processResult struct {
	Processes []listedProcess `json:"processes,omitempty"`
	Omitted   int             `json:"processes_omitted,omitempty"`
	Output    *processOutput  `json:"output,omitempty" jsonschema:"except for list"`
}

func (s *Server) process(ctx context.Context, req *sdk.CallToolRequest, in processInput) (*sdk.CallToolResult, *processResult, error) {
	limit, err := budget(in.MaxOutput)
	if err != nil {
		return nil, nil, err
	}
	standard := time.Duration(0)
	if in.Action == "write" {
		standard = time.Second
	}
	yield, err := yieldTime(in.Yield, standard)
	if err != nil {
		return nil, nil, err
	}
	if (in.Process == "") != (in.Action == "list") {
		return nil, nil, errors.New("process: want the id of a process with read, write and kill, and none with list")
	}
	v, name, err := s.open(ctx, req, in.VM)
	if err != nil {
		return nil, nil, err
	}
	defer v.Close()
	if in.Action == "list" {
		return listProcesses(ctx, v)
	}
	j, err := v.Job(ctx, in.Process)
	if err != nil {
		return nil, nil, fmt.Errorf("process %s: %w (action list shows what there is)", in.Process, err)
	}
	switch in.Action {
	case "write":
		writing, cancel := context.WithTimeout(ctx, max(yield, time.Second))
		err = j.Input(writing, []byte(in.Input), in.EndInput)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("process %s does not read its input: it is not known how much it has taken", in.Process)
		} else if errors.Is(err, syscall.EPIPE) {
			err = fmt.Errorf("process %s reads no input: it has ended, its input has, or exec was called without interactive: %w", in.Process, err)
		}
	case "kill":
		if in.Signal == 0 {
			if err = j.Kill(ctx); err == nil {
				yield = max(yield, agenttool.KillTime)
			}
		} else {
			err = j.Signal(ctx, in.Signal)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	out, err := s.readJob(ctx, j, in.From, yield, limit)
	if err != nil {
		return nil, nil, err
	}
	out.VM, out.Process = name, j.ID()
	return text(out.String()), &processResult{Output: out}, nil
}

// readJob reads a job's output from a place on, and waits at most for a time for more.
func (s *Server) readJob(ctx context.Context, j vm.Job, from uint64, yield time.Duration, limit int) (*processOutput, error) {
	info, err := j.Info(ctx)
	if err != nil {
		return nil, err
	}
	if from > info.OutputBytes {
		return nil, fmt.Errorf("from %d: process %s has written %d bytes so far", from, j.ID(), info.OutputBytes)
	}
	wait := ctx
	if info.Ended.IsZero() {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, yield)
		defer cancel()
	}
	p, err := agenttool.Read(ctx, wait, j, vm.Cursor(from), vm.Cursor(info.OutputBytes), limit)
	if err != nil {
		return nil, err
	}
	if info, err = j.Info(ctx); err != nil {
		return nil, err
	}
	end, endErr := p.End, p.Err
	if end == nil && !info.Ended.IsZero() { // it has ended, and there is more output
		e, err := j.Wait(ctx)
		end, endErr = &e, err
	}
	p.HoldBack()
	out := &processOutput{From: from, Total: info.OutputBytes}
	out.add(p)
	out.finish(end, endErr, time.Since(info.Started))
	if end != nil && !info.Ended.IsZero() {
		out.Seconds = float64(info.Ended.Sub(info.Started).Milliseconds()) / 1000
	}
	return out, nil
}

func listProcesses(ctx context.Context, v VM) (*sdk.CallToolResult, *processResult, error) {
	list, err := v.Jobs(ctx)
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(list, func(a, b vm.JobInfo) int { return b.Started.Compare(a.Started) })
	result := &processResult{Processes: []listedProcess{}, Omitted: max(0, len(list)-processList)}
	for _, i := range list[:min(len(list), processList)] {
		args := i.Args
		if len(args) == 3 && args[1] == "-c" {
			args = args[2:]
		}
		command := []byte(strings.Join(args, " "))
		n, _ := agenttool.Prefix(command, maxCommand)
		p := listedProcess{Process: i.ID, Command: strings.ToValidUTF8(string(command[:n]), "\uFFFD"), Running: i.Ended.IsZero(), Started: i.Started, Total: i.OutputBytes}
		if i.Exit != nil {
			p.ExitCode = &i.Exit.Code
		}
		result.Processes = append(result.Processes, p)
	}
	return nil, result, nil
}
