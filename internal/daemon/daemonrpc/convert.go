package daemonrpc

import (
	"encoding/json"
	"errors"
	"math"
	"time"

	"agentvm/internal/daemon/daemonrpc/daemonwire"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/guest/guestrpc/guestwire"
	"agentvm/vm"
)

func (i Info) write(w daemonwire.DaemonInfo) error {
	w.SetPid(int64(i.Pid))
	w.SetState(daemonwire.DaemonState(i.State))
	w.SetMemory(i.Memory)
	w.SetClients(uint32(i.Clients))
	w.SetJobs(uint32(i.Jobs))
	var sidecars []byte
	if len(i.Sidecars) > 0 {
		sidecars, _ = json.Marshal(i.Sidecars) // texts, numbers and times of this clock
	}
	return errors.Join(
		w.SetSidecars(sidecars),
		w.SetName(i.Name), w.SetVersion(i.Version), w.SetImage(i.Image), w.SetKernel(i.Kernel), w.SetError(i.Error),
		w.SetPolicy(i.Policy), w.SetConfig(i.Config), w.SetHealth(i.Health), w.SetPlatform(i.Platform), writeMoment(w.NewStarted, i.Started),
		capnprpc.WriteTexts(w.NewMounts, i.Mounts), capnprpc.WriteTexts(w.NewPorts, i.Ports), capnprpc.WriteTexts(w.NewLabels, i.Labels),
	)
}

func readInfo(w daemonwire.DaemonInfo, err error) (i Info, _ error) {
	if err != nil {
		return i, err
	}
	i.Pid, i.State, i.Memory = int(w.Pid()), State(w.State()), w.Memory()
	i.Clients, i.Jobs = int(w.Clients()), int(w.Jobs())
	var r capnprpc.FieldReader
	i.Name, i.Version, i.Image = r.Text(w.Name()), r.Text(w.Version()), r.Text(w.Image())
	i.Kernel, i.Error, i.Policy = r.Text(w.Kernel()), r.Text(w.Error()), r.Text(w.Policy())
	i.Started = momentOf(&r)(w.Started())
	i.Mounts, i.Ports, i.Labels = r.Texts(w.Mounts()), r.Texts(w.Ports()), r.Texts(w.Labels())
	i.Config, i.Health, i.Platform = r.Data(w.Config()), r.Text(w.Health()), r.Text(w.Platform())
	if sidecars := r.Data(w.Sidecars()); len(sidecars) > 0 && r.Err == nil {
		r.Err = json.Unmarshal(sidecars, &i.Sidecars)
	}
	return i, r.Err
}

func (o JobOptions) write(w daemonwire.JobOptions) error {
	w.SetDurable(o.Durable)
	w.SetInput(o.Input)
	w.SetTimeoutMillis(uint64(max(o.Timeout.Milliseconds(), 0)))
	w.SetMaxOutput(o.MaxOutput)
	w.SetAdopt(o.Adopt)
	w.SetReceived(o.Received)
	return w.SetLabel(o.Label)
}

func readJobOptions(w daemonwire.JobOptions, err error) (o JobOptions, _ error) {
	if err != nil {
		return o, err
	}
	o = JobOptions{Durable: w.Durable(), Input: w.Input(), MaxOutput: w.MaxOutput(), Adopt: w.Adopt(), Received: w.Received()}
	o.Timeout = time.Duration(min(w.TimeoutMillis(), math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
	o.Label, err = w.Label()
	return o, err
}

func writeJobInfo(w daemonwire.JobInfo, i vm.JobInfo) error {
	w.SetTimedOut(i.TimedOut)
	w.SetDurable(i.Durable)
	w.SetTerminal(i.Terminal)
	w.SetOutputBytes(i.OutputBytes)
	return errors.Join(
		w.SetId(i.ID), w.SetLabel(i.Label), w.SetError(i.Error), capnprpc.WriteTexts(w.NewArgs, i.Args),
		writeMoment(w.NewStarted, i.Started), writeMoment(w.NewEnded, i.Ended), guestrpc.WriteExit(w.NewExit, i.Exit),
	)
}

func readJobInfo(w daemonwire.JobInfo, err error) (i vm.JobInfo, _ error) {
	if err != nil {
		return i, err
	}
	i.TimedOut, i.Durable, i.Terminal, i.OutputBytes = w.TimedOut(), w.Durable(), w.Terminal(), w.OutputBytes()
	var r capnprpc.FieldReader
	i.ID, i.Label, i.Error = r.Text(w.Id()), r.Text(w.Label()), r.Text(w.Error())
	i.Args = r.Texts(w.Args())
	i.Started, i.Ended = momentOf(&r)(w.Started()), momentOf(&r)(w.Ended())
	if r.Err == nil {
		i.Exit, r.Err = guestrpc.ReadExit(w.Exit())
	}
	return i, r.Err
}

// writeMoment writes a time. A zero time stays null.
func writeMoment(create func() (guestwire.Time, error), t time.Time) error {
	if t.IsZero() {
		return nil
	}
	w, err := create()
	if err != nil {
		return err
	}
	guestrpc.WriteTime(w, t)
	return nil
}

// momentOf reads times for r. Null becomes the zero time.
func momentOf(r *capnprpc.FieldReader) func(guestwire.Time, error) time.Time {
	return func(w guestwire.Time, err error) time.Time {
		r.Keep(err)
		return guestrpc.ReadTime(w)
	}
}
