package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/egress"
	"agentvm/vm"
)

// maxAudit is up to where network.log grows; then it becomes network.log.1, as the daemon's log does.
const maxAudit = 4 << 20

// auditLog writes the events of a VM's network: always to a log of bounded size in its directory, and to a file that grows
// where one is wanted. A nil *auditLog is none.
type auditLog struct {
	kept   *logFile
	wanted *os.File // nil: none
	logger *slog.Logger
	failed sync.Once // what cannot be written is said once

	denials atomic.Int64 // of the gate's that have come
}

func openAudit(kept, wanted string, logger *slog.Logger) (*auditLog, error) {
	log, err := openLog(kept, maxAudit)
	if err != nil {
		return nil, err
	}
	a := &auditLog{kept: log, logger: logger}
	if wanted == "" {
		return a, nil
	}
	if a.wanted, err = os.OpenFile(wanted, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("network log: %w", err), log.Close())
	}
	return a, nil
}

// write is vm.Network.Audit. Each event is one write, so that lines are whole for those who follow.
func (a *auditLog) write(e egress.Event) {
	if e.Verdict == egress.VerdictDeny && e.Kind != egress.KindPolicy && e.Kind != egress.KindUnix {
		a.denials.Add(1)
	}
	line, err := e.Line()
	if err == nil {
		_, err = a.kept.Write(line)
	}
	if a.wanted != nil && len(line) > 0 {
		_, wantedErr := a.wanted.Write(line)
		err = errors.Join(err, wantedErr)
	}
	if err != nil {
		a.failed.Do(func() { a.logger.Warn("the record of the network is not complete", "error", err) })
	}
}

// Close closes the files.
func (a *auditLog) Close() error {
	if a == nil {
		return nil
	}
	err := a.kept.Close()
	if a.wanted != nil {
		err = errors.Join(err, a.wanted.Close())
	}
	return err
}

// StartEvent is the first event of a machine in a log: it says which policy the machine begins with.
func StartEvent(n vm.Network) egress.Event {
	return egress.Event{
		Time: time.Now(), Kind: egress.KindPolicy, Verdict: egress.VerdictAllow, Reason: egress.ReasonStart, Message: vm.DescribePolicy(n.Policy),
	}
}
