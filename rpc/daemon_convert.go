package rpc

import (
	"errors"
	"math"
	"syscall"
	"time"

	"capnproto.org/go/capnp/v3"

	"agentvm/rpc/wire"
)

// linuxFailure gives err the errno of Linux that has the name of the one found in it. The guest needs no such thing; a
// daemon may run on another system.
func linuxFailure(err error) error {
	var own *Error
	var number syscall.Errno
	if err == nil || errors.As(err, &own) || !errors.As(err, &number) {
		return err
	}
	e := &Error{Kind: KindSystem, Message: err.Error()}
	for linux, here := range hostErrno {
		if here == number {
			e.Errno = linux
		}
	}
	return e
}

func (i DaemonInfo) write(w wire.DaemonInfo) error {
	w.SetPid(int64(i.Pid))
	w.SetState(wire.DaemonState(i.State))
	w.SetMemory(i.Memory)
	w.SetClients(uint32(i.Clients))
	w.SetJobs(uint32(i.Jobs))
	return errors.Join(
		w.SetName(i.Name), w.SetVersion(i.Version), w.SetImage(i.Image), w.SetKernel(i.Kernel), w.SetError(i.Error),
		w.SetPolicy(i.Policy), w.SetConfig(i.Config), writeMoment(w.NewStarted, i.Started),
		writeTexts(w.NewMounts, i.Mounts), writeTexts(w.NewPorts, i.Ports), writeTexts(w.NewLabels, i.Labels),
	)
}

func readDaemonInfo(w wire.DaemonInfo, err error) (i DaemonInfo, _ error) {
	if err != nil {
		return i, err
	}
	i.Pid, i.State, i.Memory = int(w.Pid()), DaemonState(w.State()), w.Memory()
	i.Clients, i.Jobs = int(w.Clients()), int(w.Jobs())
	var r reading
	i.Name, i.Version, i.Image = r.text(w.Name()), r.text(w.Version()), r.text(w.Image())
	i.Kernel, i.Error, i.Policy = r.text(w.Kernel()), r.text(w.Error()), r.text(w.Policy())
	i.Started = r.moment(w.Started())
	i.Mounts, i.Ports, i.Labels = r.texts(w.Mounts()), r.texts(w.Ports()), r.texts(w.Labels())
	i.Config = r.data(w.Config())
	return i, r.err
}

func (o JobOptions) write(w wire.JobOptions) error {
	w.SetDurable(o.Durable)
	w.SetInput(o.Input)
	w.SetTimeoutMillis(uint64(max(o.Timeout.Milliseconds(), 0)))
	w.SetMaxOutput(o.MaxOutput)
	return w.SetLabel(o.Label)
}

func readJobOptions(w wire.JobOptions, err error) (o JobOptions, _ error) {
	if err != nil {
		return o, err
	}
	o = JobOptions{Durable: w.Durable(), Input: w.Input(), MaxOutput: w.MaxOutput()}
	o.Timeout = time.Duration(min(w.TimeoutMillis(), math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
	o.Label, err = w.Label()
	return o, err
}

func (i JobInfo) write(w wire.JobInfo) error {
	w.SetTimedOut(i.TimedOut)
	w.SetDurable(i.Durable)
	w.SetTerminal(i.Terminal)
	w.SetOutputBytes(i.OutputBytes)
	return errors.Join(
		w.SetId(i.ID), w.SetLabel(i.Label), w.SetError(i.Error), writeTexts(w.NewArgs, i.Args),
		writeMoment(w.NewStarted, i.Started), writeMoment(w.NewEnded, i.Ended), writeExit(w.NewExit, i.Exit),
	)
}

func readJobInfo(w wire.JobInfo, err error) (i JobInfo, _ error) {
	if err != nil {
		return i, err
	}
	i.TimedOut, i.Durable, i.Terminal, i.OutputBytes = w.TimedOut(), w.Durable(), w.Terminal(), w.OutputBytes()
	var r reading
	i.ID, i.Label, i.Error = r.text(w.Id()), r.text(w.Label()), r.text(w.Error())
	i.Args = r.texts(w.Args())
	i.Started, i.Ended = r.moment(w.Started()), r.moment(w.Ended())
	if r.err == nil {
		i.Exit, r.err = readExit(w.Exit())
	}
	return i, r.err
}

func writeExit(create func() (wire.Exit, error), s *ExitStatus) error {
	if s == nil {
		return nil
	}
	w, err := create()
	if err != nil {
		return err
	}
	w.SetCode(uint8(s.Code))
	w.SetSignal(uint8(s.Signal))
	if s.Cause == nil {
		return nil
	}
	f, err := w.NewFailure()
	if err != nil {
		return err
	}
	return setFailure(f, linuxFailure(s.Cause))
}

func readExit(w wire.Exit, err error) (*ExitStatus, error) {
	if err != nil || !w.IsValid() {
		return nil, err
	}
	cause, err := w.Failure()
	if err != nil {
		return nil, err
	}
	return &ExitStatus{Code: int(w.Code()), Signal: int(w.Signal()), Cause: failureOf(cause, nil)}, nil
}

// writeMoment writes a time; the zero one stays null.
func writeMoment(create func() (wire.Time, error), t time.Time) error {
	if t.IsZero() {
		return nil
	}
	w, err := create()
	if err != nil {
		return err
	}
	writeTime(w, t)
	return nil
}

// reading reads fields and remembers the first error.
type reading struct{ err error }

func (r *reading) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reading) text(s string, err error) string {
	r.keep(err)
	return s
}

func (r *reading) texts(list capnp.TextList, err error) []string {
	texts, err := readTexts(list, err)
	r.keep(err)
	return texts
}

func (r *reading) data(b []byte, err error) []byte {
	b, err = copyData(b, err)
	r.keep(err)
	return b
}

func (r *reading) moment(w wire.Time, err error) time.Time {
	r.keep(err)
	return readTime(w)
}
