package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"agentvm/internal/host/atomicfile"
	"agentvm/internal/host/private"
)

// processRecord is process.json: the process that holds the lock. The daemon writes it as soon as it has the lock, so that it can be
// killed even if it never listens, and removes it before it releases the lock. Began distinguishes the process from a later one with
// the same number.
type processRecord struct {
	Pid   int    `json:"pid"`
	Began string `json:"began"`
}

func (p paths) process() string { return filepath.Join(p.dir, "process.json") }

// writeProcess records that this process is the daemon. Where the system does not report when a process began, there is no record, and
// the user has to end a daemon that does not answer.
func (p paths) writeProcess() error {
	began, err := processBegan(os.Getpid())
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("say which process the daemon is: %w", err)
	}
	return writeRecord(p, processRecord{os.Getpid(), began})
}

func writeRecord(p paths, r processRecord) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.WriteVolatile(p.process(), append(b, '\n'))
}

func (p paths) readProcess() (r processRecord, err error) {
	b, err := private.ReadFile(p.process(), maxState)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err == nil && (r.Pid <= 1 || r.Began == "") {
		err = fmt.Errorf("%s: process %d, begun %.40q", p.process(), r.Pid, r.Began)
	}
	return r, err
}

// openDaemon opens the process that holds the VM's lock. The result is certainly that process: it has the recorded number and start
// time, both checked after it was opened, and the writer of the record still held the lock after that.
func openDaemon(p paths) (*openProcess, error) {
	r, err := p.readProcess()
	if err != nil {
		return nil, fmt.Errorf("find the daemon's process: %w", err)
	}
	process, err := openByNumber(r.Pid)
	if err != nil {
		return nil, fmt.Errorf("open the daemon's process %d: %w", r.Pid, err)
	}
	began, err := processBegan(r.Pid)
	switch {
	case err != nil:
		err = fmt.Errorf("look at process %d: %w", r.Pid, err)
	case began != r.Began:
		err = fmt.Errorf("process %d is not the daemon: that began at %s, this one at %s", r.Pid, r.Began, began)
	default:
		err = stillDaemon(p, r)
	}
	if err != nil {
		return nil, errors.Join(err, process.close())
	}
	return process, nil
}

// stillDaemon returns an error unless the lock is held and the record is unchanged.
func stillDaemon(p paths, r processRecord) error {
	alive, unlock, err := probe(p)
	if err != nil {
		return err
	}
	if !alive {
		return errors.Join(errDaemonGone, unlock())
	}
	if now, err := p.readProcess(); err != nil || now != r {
		return errors.Join(errDaemonGone, err)
	}
	return nil
}

// errDaemonGone says that the daemon has ended. Another one may run.
var errDaemonGone = errors.New("the daemon has ended meanwhile")

// forceEnd ends a daemon that does not answer or does not stop: in order until orderly ends, and then by killing it. It reports whether
// the process was killed.
func forceEnd(ctx context.Context, p paths, orderly context.Context) (killed bool, err error) {
	process, err := openDaemon(p)
	if err != nil {
		if errors.Is(err, errDaemonGone) {
			return false, awaitGone(ctx, p)
		}
		return false, err
	}
	defer func() { _ = process.close() }()
	if orderly.Err() == nil && process.terminate() == nil {
		if err := awaitGone(orderly, p); err == nil || ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	if err := process.kill(); err != nil {
		return false, fmt.Errorf("kill the daemon's process: %w", err)
	}
	return true, awaitGone(ctx, p)
}
