package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"agentvm/egress"
)

// maxAudit bounds network.log, in bytes. At that size it becomes network.log.1, as the daemon's log does.
const maxAudit = 4 << 20

// auditLog writes the events of a VM's network: always to a log of bounded size in the VM's directory, and to a file without a bound
// where the configuration has one. A nil *auditLog is valid and can be closed.
type auditLog struct {
	kept   *logFile
	wanted *os.File // nil: none
	logger *slog.Logger
	failed sync.Once // the first failure to write is logged

	denials atomic.Int64 // denials by the gate that were written
}

func openAudit(kept, wanted string, open openOutput, logger *slog.Logger) (*auditLog, error) {
	log, err := openLog(kept, maxAudit)
	if err != nil {
		return nil, err
	}
	a := &auditLog{kept: log, logger: logger}
	if wanted == "" {
		return a, nil
	}
	if a.wanted, err = open(wanted, os.O_APPEND); err != nil {
		return nil, errors.Join(fmt.Errorf("network log: %w", err), log.Close())
	}
	return a, nil
}

// write is vm.Network.Audit. Each event is one write, so that a reader that follows the file sees whole lines.
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
