package daemon

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"agentvm/egress"
	"agentvm/internal/host/tail"
)

// followPause is how often the files are looked at.
const followPause = 200 * time.Millisecond

// EventsOptions say which events are wanted.
type EventsOptions struct {
	// Names are those of VMs, which need not exist yet. Default: all.
	Names []string
	// Since is the time of the first event. Default: now with Follow, else all that are kept.
	Since time.Time
	// Follow waits for further events until ctx ends.
	Follow bool
}

// Events calls use with each event of the store's VMs, until it returns an error. Events of earlier times come first, in order; those that
// follow come within half a second. It reads files and connects to no daemon, so that it keeps no VM from being idle.
func (s Store) Events(ctx context.Context, o EventsOptions, use func(Event) error) error {
	f := &eventFollower{store: s, names: o.Names, vms: make(map[string]*eventSource)}
	defer f.close()
	if o.Follow && o.Since.IsZero() {
		o.Since, f.fromEnd = time.Now(), true
	}
	ticker := time.NewTicker(followPause)
	defer ticker.Stop()
	for {
		list := f.round()
		f.fromEnd = false // of VMs that come later all is new
		for _, e := range list {
			if e.Time.Before(o.Since) {
				continue
			}
			if err := use(e); err != nil {
				return err
			}
		}
		if !o.Follow {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// eventFollower reads the files of several VMs.
type eventFollower struct {
	store Store
	names []string
	vms   map[string]*eventSource

	fromEnd bool // what the files have already is not wanted
}

// eventSource are the files of one VM.
type eventSource struct {
	dir     fs.FileInfo
	paths   paths
	readers map[string]*tail.Reader
}

// round returns the events that have come since the last round, in order.
func (f *eventFollower) round() (list []Event) {
	entries, _ := os.ReadDir(f.store.Dir)
	there := make(map[string]bool)
	for _, e := range entries {
		name := e.Name()
		if len(f.names) > 0 && !slices.Contains(f.names, name) {
			continue
		}
		p, err := f.store.existing(name)
		if err != nil {
			continue
		}
		info, err := os.Lstat(p.dir)
		if err != nil {
			continue
		}
		there[name] = true
		source := f.vms[name]
		if source != nil && !os.SameFile(source.dir, info) { // another VM of this name
			list = append(list, f.forget(name)...)
			source = nil
		}
		if source == nil {
			source = &eventSource{info, p, make(map[string]*tail.Reader)}
			f.vms[name] = source
		}
		list = append(list, source.read(f.fromEnd)...)
	}
	for name := range f.vms {
		if !there[name] {
			list = append(list, f.forget(name)...)
		}
	}
	slices.SortStableFunc(list, func(a, b Event) int { return a.Time.Compare(b.Time) })
	return list
}

// forget returns the last events of a VM that was removed.
func (f *eventFollower) forget(name string) []Event {
	source := f.vms[name]
	delete(f.vms, name)
	list := source.read(false)
	source.close()
	return append(list, Event{Time: time.Now().UTC(), VM: name, Kind: EventRemoved})
}

func (f *eventFollower) close() {
	for _, source := range f.vms {
		source.close()
	}
}

func (s *eventSource) close() {
	for _, r := range s.readers {
		_ = r.Close()
	}
}

// read returns what has come to the files. What cannot be read is left out.
func (s *eventSource) read(fromEnd bool) (list []Event) {
	name := filepath.Base(s.paths.dir)
	for path, parse := range map[string]func([]byte) (Event, bool){s.paths.events(): parseEvent, s.paths.audit(): parseDenial} {
		use := func(line []byte) error {
			if e, ok := parse(line); ok {
				e.VM = name
				list = append(list, e)
			}
			return nil
		}
		if s.readers[path] == nil {
			if !fromEnd { // the part before this one has the older events
				if r, err := tail.Open(path+".1", nil); err == nil {
					_ = r.Poll(use)
					_ = r.Close()
				}
			}
			r, err := tail.Open(path, nil)
			if err != nil {
				continue
			}
			if fromEnd {
				_ = r.SkipTo(0) // fails only where Poll does
			}
			s.readers[path] = r
		}
		_ = s.readers[path].Poll(use) // what cannot be read now comes later
	}
	return list
}

func parseEvent(line []byte) (e Event, ok bool) {
	err := json.Unmarshal(line, &e)
	return e, err == nil && e.Kind != ""
}

// parseDenial makes an event of a line of network.log.
func parseDenial(line []byte) (e Event, ok bool) {
	var denied egress.Event
	if json.Unmarshal(line, &denied) != nil || denied.Verdict != egress.VerdictDeny {
		return e, false
	}
	e = Event{Time: denied.Time, Kind: EventDenied, Message: denied.Message, Program: denied.Process, Target: denied.Target()}
	return e, true
}
