package serve

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"agentvm/vm"
)

// Job describes a command whose output is kept, also when the VM has ended.
type Job struct {
	ID          string     `json:"id"`
	Label       string     `json:"label,omitempty"`
	Args        []string   `json:"args"`
	Started     time.Time  `json:"started"`
	Ended       *time.Time `json:"ended,omitempty"`
	ExitCode    *int       `json:"exitCode,omitempty"`
	Signal      int        `json:"signal,omitempty"`
	TimedOut    bool       `json:"timedOut,omitempty"`
	OutputBytes uint64     `json:"outputBytes"`
	Error       string     `json:"error,omitempty" jsonschema:"why it is not known how it has ended"`
}

// NewJob is a command that continues without its client.
type NewJob struct {
	Line           string            `json:"command,omitempty" jsonschema:"shell source; this or args"`
	Args           []string          `json:"args,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	Dir            string            `json:"dir,omitempty"`
	User           string            `json:"user,omitempty"`
	TimeoutSeconds float64           `json:"timeoutSeconds,omitempty"`
	Label          string            `json:"label,omitempty"`
	Input          bool              `json:"input,omitempty" jsonschema:"read as input what is sent to /input; default: the input is empty"`
}

// JobOutput is a part of what a job has written.
type JobOutput struct {
	Chunks []JobChunk `json:"chunks"`
	Next   uint64     `json:"next" jsonschema:"the cursor of the next part"`
	Lost   uint64     `json:"lost,omitempty" jsonschema:"bytes before the first chunk that are no longer kept"`
	Ended  bool       `json:"ended,omitempty" jsonschema:"nothing follows"`
}

// JobChunk is bytes of one stream.
type JobChunk struct {
	Stream string `json:"stream" jsonschema:"stdout or stderr"`
	Data   []byte `json:"data" jsonschema:"base64"`
}

// Signal is one to send.
type Signal struct {
	Signal int `json:"signal" jsonschema:"the signal's number in Linux, 1 to 64"`
}

const (
	maxWait  = 60 * time.Second
	maxChunk = 1 << 20
)

func (s *Server) jobRoutes() []route {
	input := route{
		method: "POST", path: "/v1/vms/{vm}/jobs/{job}/input", summary: "Writes the body to a job's standard input", rawIn: "application/octet-stream",
		status: http.StatusNoContent, stream: true, serve: s.input, query: []parameter{{name: "end", usage: "true: nothing follows"}},
	}
	return []route{
		call("GET", "/v1/vms/{vm}/jobs", "Lists the jobs of a VM", func(r *http.Request, _ struct{}) ([]Job, error) {
			list, err := s.options.Store.Jobs(r.Context(), r.PathValue("vm"))
			out := make([]Job, 0, len(list))
			for _, info := range list {
				out = append(out, jobOf(info))
			}
			return out, err
		}),
		call("POST", "/v1/vms/{vm}/jobs", "Starts a job", s.startJob),
		call("GET", "/v1/vms/{vm}/jobs/{job}", "Describes a job", func(r *http.Request, _ struct{}) (out Job, err error) {
			err = s.onJob(r, func(j vm.Job) error {
				info, err := j.Info(r.Context())
				out = jobOf(info)
				return err
			})
			return out, err
		}),
		func() route {
			out := call("GET", "/v1/vms/{vm}/jobs/{job}/output", "Reads a job's output from a cursor on", s.output)
			out.stream = true
			return out.with(parameter{name: "from", usage: "the cursor: next of the previous part; default 0"},
				parameter{name: "waitSeconds", usage: "how long to wait for a byte or the end, at most 60; default 0"})
		}(),
		input,
		call("POST", "/v1/vms/{vm}/jobs/{job}/signal", "Sends a signal to a job", func(r *http.Request, in Signal) (none struct{}, err error) {
			if in.Signal < 1 || in.Signal > 64 {
				return none, invalid("signal: want 1 to 64")
			}
			return none, s.onJob(r, func(j vm.Job) error { return j.Signal(r.Context(), in.Signal) })
		}),
		call("DELETE", "/v1/vms/{vm}/jobs/{job}", "Kills a job and forgets its output", func(r *http.Request, _ struct{}) (none struct{}, err error) {
			return none, s.onJob(r, func(j vm.Job) error { return j.Remove(r.Context()) })
		}),
	}
}

func (s *Server) startJob(r *http.Request, in NewJob) (Job, error) {
	command, err := Command{Line: in.Line, Args: in.Args, Env: in.Env, Dir: in.Dir, User: in.User, TimeoutSeconds: in.TimeoutSeconds}.command()
	if err != nil {
		return Job{}, err
	}
	command.Stdin = nil
	v, err := s.open(r)
	if err != nil {
		return Job{}, err
	}
	defer v.Close()
	j, err := v.StartJob(r.Context(), command, vm.JobOptions{Label: in.Label, NoInput: !in.Input})
	if err != nil {
		return Job{}, err
	}
	defer j.Close()
	info, err := j.Info(r.Context())
	return jobOf(info), err
}

// onJob calls do with the job of a request's path, whose VM need not run.
func (s *Server) onJob(r *http.Request, do func(vm.Job) error) error {
	return s.options.Store.WithJob(r.Context(), r.PathValue("vm"), r.PathValue("job"), do)
}

func (s *Server) output(r *http.Request, _ struct{}) (out JobOutput, err error) {
	var from uint64
	if text := r.URL.Query().Get("from"); text != "" {
		if from, err = strconv.ParseUint(text, 10, 64); err != nil {
			return out, invalid("from: want a number")
		}
	}
	wait := time.Duration(0)
	if text := r.URL.Query().Get("waitSeconds"); text != "" {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return out, invalid("waitSeconds: want a number")
		}
		if wait, err = seconds("waitSeconds", n); err != nil {
			return out, err
		}
	}
	ctx := r.Context()
	limited, cancelWait := context.WithTimeout(ctx, min(wait, maxWait))
	defer cancelWait()
	defer context.AfterFunc(s.ending, cancelWait)() // which the client takes for the end of its wait
	out = JobOutput{Chunks: []JobChunk{}, Next: from}
	err = s.onJob(r, func(j vm.Job) error {
		info, err := j.Info(ctx)
		if err != nil {
			return err
		}
		if info.OutputBytes > from || !info.Ended.IsZero() {
			limited = ctx // it need not wait
		}
		o, err := j.Output(limited, vm.Cursor(from), maxChunk)
		if err != nil && limited.Err() != nil && ctx.Err() == nil {
			return nil // nothing yet
		}
		if err != nil {
			return err
		}
		for _, c := range o.Chunks {
			out.Chunks = append(out.Chunks, JobChunk{c.Stream.String(), c.Data})
		}
		out.Next, out.Lost, out.Ended = uint64(o.Next), o.Lost, o.End != nil
		return nil
	})
	return out, err
}

// input passes a body on while it comes.
func (s *Server) input(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	err := s.onJob(r, func(j vm.Job) error {
		b := make([]byte, 64<<10)
		for {
			n, err := r.Body.Read(b)
			if n > 0 {
				if err := j.Input(ctx, b[:n], false); err != nil {
					return err
				}
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
		}
		if r.URL.Query().Get("end") == "true" {
			return j.Input(ctx, nil, true)
		}
		return nil
	})
	if err != nil {
		WriteProblem(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func jobOf(i vm.JobInfo) Job {
	out := Job{ID: i.ID, Label: i.Label, Args: i.Args, Started: i.Started, TimedOut: i.TimedOut, OutputBytes: i.OutputBytes, Error: i.Error}
	if !i.Ended.IsZero() {
		out.Ended = &i.Ended
	}
	if i.Exit != nil {
		out.ExitCode, out.Signal = &i.Exit.Code, i.Exit.Signal
	}
	return out
}
