package top

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/host/hostfile"
	"agentvm/vm"
)

const (
	callTime   = 5 * time.Second  // for one call to a daemon
	slowTime   = 10 * time.Second // between looks at what changes slowly
	stopTime   = 5 * time.Second  // for programs to end
	logBacklog = 16 << 10         // bytes of each network's log with which it begins
	maxText    = 64 << 10         // bytes of outputs and logs that are shown
	atOnce     = 4                // VMs that are asked at the same time
)

// Store is a Source: the VMs of a store. It keeps a connection to each that runs. Close it.
type Store struct {
	store *client.Store
	known map[string]*known
}

// known is what is kept about a VM between readings.
type known struct {
	v    *client.VM // nil: no daemon, or it could not be reached
	pid  int
	log  *client.NetworkLog
	slow time.Time // of the last look at what changes slowly
	vm   VM

	at             time.Time // of the last reading
	cpu            time.Duration
	sent, received uint64
}

// NewStore returns a Source.
func NewStore(s *client.Store) *Store { return &Store{s, map[string]*known{}} }

// Close ends the connections.
func (s *Store) Close() {
	for _, k := range s.known {
		k.close()
	}
}

func (k *known) close() {
	if k.v != nil {
		_ = k.v.Close()
		k.v = nil
	}
	if k.log != nil {
		_ = k.log.Close()
		k.log = nil
	}
}

// Read implements Source.
func (s *Store) Read(ctx context.Context) (Reading, error) {
	names := s.store.Names()
	for name, k := range s.known {
		if !slices.Contains(names, name) {
			k.close()
			delete(s.known, name)
		}
	}
	r := Reading{At: time.Now(), VMs: make([]VM, len(names))}
	events := make([][]Connection, len(names))
	slots := make(chan struct{}, atOnce)
	var asking sync.WaitGroup
	for i, name := range names {
		k := s.known[name]
		if k == nil {
			k = &known{vm: VM{Name: name}}
			s.known[name] = k
		}
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			s.read(ctx, k)
			r.VMs[i], events[i] = k.vm, k.events(s.store)
		})
	}
	asking.Wait()
	r.Connections = slices.Concat(events...)
	slices.SortStableFunc(r.Connections, func(a, b Connection) int { return a.Time.Compare(b.Time) })
	return r, ctx.Err()
}

// read reads one VM.
func (s *Store) read(ctx context.Context, k *known) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	now := time.Now()
	alive, err := s.store.Alive(k.vm.Name)
	changed := err != nil || alive != (k.v != nil)
	if changed || now.Sub(k.slow) >= slowTime {
		s.readSlow(ctx, k, alive)
		k.slow = now
	}
	if k.v == nil {
		k.vm.CPU, k.vm.Memory, k.vm.Sent, k.vm.Received, k.vm.Open = 0, 0, 0, 0, 0
		k.at = time.Time{}
		return
	}
	cpu, memory, counted := processUse(k.pid)
	if !counted && k.vm.State == client.Running {
		if guest, err := k.v.Stats(ctx); err == nil {
			cpu, memory = guest.User+guest.System, guest.MemoryTotal-min(guest.MemoryAvailable, guest.MemoryTotal)
		}
	}
	sent, received := k.sent, k.received
	network, err := k.v.NetworkStats(ctx)
	switch {
	case errors.Is(err, client.ErrClosed):
		_ = k.v.Close()
		k.v, k.slow = nil, time.Time{}
		return
	case err == nil:
		sent, received = network.Link.BytesFromGuest, network.Link.BytesToGuest
		k.vm.Denied, k.vm.Open = network.Egress.Denied+network.Egress.Refused, network.Egress.Open
	}
	if t := now.Sub(k.at).Seconds(); !k.at.IsZero() && t > 0 {
		k.vm.CPU = max(0, (cpu-k.cpu).Seconds()/t)
		k.vm.Sent, k.vm.Received = rate(sent, k.sent, t), rate(received, k.received, t)
	}
	k.vm.Memory = memory
	k.at, k.cpu, k.sent, k.received = now, cpu, sent, received
}

func rate(now, before uint64, seconds float64) float64 {
	if now < before {
		return 0
	}
	return float64(now-before) / seconds
}

// readSlow reads what changes slowly, and connects or leaves.
func (s *Store) readSlow(ctx context.Context, k *known, alive bool) {
	status, err := s.store.Status(ctx, k.vm.Name)
	if err != nil {
		if !errors.Is(err, client.ErrNotFound) {
			k.vm.State, k.vm.Error = client.Unreachable, err.Error()
		}
		return
	}
	k.vm.State, k.vm.Error, k.vm.Sidecars = status.State, status.Error, nil
	k.vm.Started, k.vm.Jobs, k.vm.Health = time.Time{}, 0, ""
	if i := status.Info; i != nil {
		k.vm.Started, k.vm.Jobs, k.vm.Health, k.vm.Sidecars = i.Started, i.Jobs, i.Health, i.Sidecars
		if k.pid != i.Pid {
			k.at = time.Time{}
		}
		k.pid = i.Pid
	}
	if path, err := s.store.LogPath(k.vm.Name); err == nil {
		k.vm.Disk = allocated(filepath.Dir(path))
	}
	switch {
	case alive && k.v == nil && status.Info != nil:
		if v, err := s.store.Open(ctx, k.vm.Name); err == nil {
			k.v = v
		}
	case !alive && k.v != nil:
		_ = k.v.Close()
		k.v = nil
	}
}

// allocated returns how many bytes the files of a directory take on the disk. What is shared with other VMs counts for each.
func allocated(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // removed meanwhile
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			n += int64(hostfile.Of(info).Blocks) * 512
		}
		return nil
	})
	return n
}

// events returns what was recorded of the VM's network since the last call.
func (k *known) events(s *client.Store) (list []Connection) {
	if k.log == nil {
		log, err := s.NetworkLog(k.vm.Name, logBacklog)
		if err != nil {
			return nil
		}
		k.log = log
	}
	err := k.log.Poll(func(e egress.Event) {
		if len(list) >= maxConnections {
			list = append(list[:0], list[1:]...)
		}
		list = append(list, Connection{k.vm.Name, e})
	})
	if err != nil {
		_ = k.log.Close()
		k.log = nil
	}
	return list
}

func (s *Store) with(ctx context.Context, name string, do func(ctx context.Context, v *client.VM) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	v, err := s.store.Open(ctx, name)
	if err != nil {
		return err
	}
	defer v.Close()
	return do(ctx, v)
}

// Change implements Source.
func (s *Store) Change(ctx context.Context, name string, rule egress.Rule, allow bool) (cut int, err error) {
	err = s.with(ctx, name, func(ctx context.Context, v *client.VM) error {
		_, cut, err = client.ChangePolicy(ctx, v, func(p egress.Policy) (egress.Policy, error) {
			if allow {
				return p.Allowing(rule)
			}
			return p.Denying(rule), nil
		})
		return err
	})
	return cut, err
}

// Pause implements Source.
func (s *Store) Pause(ctx context.Context, name string) error {
	return s.with(ctx, name, func(ctx context.Context, v *client.VM) error { return v.Pause(ctx) })
}

// Resume implements Source.
func (s *Store) Resume(ctx context.Context, name string) error {
	return s.with(ctx, name, func(ctx context.Context, v *client.VM) error { return v.Resume(ctx) })
}

// Stop implements Source.
func (s *Store) Stop(ctx context.Context, name string) error {
	_, err := s.store.Stop(ctx, name, stopTime)
	return err
}

// Jobs implements Source.
func (s *Store) Jobs(ctx context.Context, name string) ([]vm.JobInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	return s.store.Jobs(ctx, name)
}

// Output implements Source.
func (s *Store) Output(ctx context.Context, name, job string) (text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err = s.store.WithJob(ctx, name, job, func(j vm.Job) error {
		info, err := j.Info(ctx)
		if err != nil || info.OutputBytes == 0 {
			return err
		}
		from := uint64(0)
		if info.OutputBytes > maxText {
			from = info.OutputBytes - maxText
		}
		o, err := j.Output(ctx, vm.Cursor(from), maxText)
		for _, c := range o.Chunks {
			text = append(text, c.Data...)
		}
		return err
	})
	return text, err
}

// Log implements Source.
func (s *Store) Log(_ context.Context, name string) ([]byte, error) {
	path, err := s.store.LogPath(name)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	from := max(0, info.Size()-maxText)
	text, err := io.ReadAll(io.NewSectionReader(file, from, maxText))
	if i := bytes.IndexByte(text, '\n'); from > 0 && i >= 0 {
		text = text[i+1:]
	}
	return text, err
}
