package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"agentvm/egress"
	"agentvm/internal/host/hostpath"
	"agentvm/vm"
)

// networkWatch is what this process does with what a VM's network reports: it writes the files of --net-log and
// --pcap, and remembers what was denied.
type networkWatch struct {
	log, capture *os.File // nil: not asked for

	mu     sync.Mutex
	denied denials
	err    error // the first of writing log
}

// watchNetwork opens the files that the flags name and makes the network's configuration report here.
func watchNetwork(f *networkFlags, config *vm.Config) (*networkWatch, error) {
	w := &networkWatch{denied: denials{file: f.policyFile}}
	n := &config.Network
	if n.Disabled {
		return w, nil
	}
	if err := w.open(f, *config); err != nil {
		w.close()
		return nil, err
	}
	if w.capture != nil {
		n.Capture = w.capture
	}
	n.Audit, n.AuditProcesses = w.record, w.log != nil
	if w.log != nil {
		w.write(egress.StartEvent(time.Now(), n.Policy))
	}
	return w, nil
}

func (w *networkWatch) open(f *networkFlags, config vm.Config) (err error) {
	if path := f.text("net-log"); path != "" {
		if w.log, err = config.OpenOutput(path, hostpath.Identity{}, os.O_APPEND); err != nil {
			return fmt.Errorf("--net-log: %w", err)
		}
	}
	if path := f.text("pcap"); path != "" {
		if w.capture, err = config.OpenOutput(path, hostpath.Identity{}, os.O_TRUNC); err != nil {
			return fmt.Errorf("--pcap: %w", err)
		}
	}
	return nil
}

// record is vm.Network.Audit.
func (w *networkWatch) record(e egress.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.denied.add(e)
	if w.log != nil {
		w.write(e)
	}
}

// write appends an event to the log with one write, so that a reader who follows it sees whole lines.
func (w *networkWatch) write(e egress.Event) {
	line, err := e.Line()
	if err == nil {
		_, err = w.log.Write(line)
	}
	if err != nil && w.err == nil {
		w.err = err
	}
}

// denials returns what was denied so far. After the VM's end that is everything.
func (w *networkWatch) denials() denials {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.denied
	d.list = slices.Clone(d.list)
	return d
}

// close closes the files, after the VM has been closed, and reports what could not be written.
func (w *networkWatch) close() error {
	errs := []error{w.err}
	for _, file := range []*os.File{w.log, w.capture} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}
