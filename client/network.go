package client

import (
	"context"
	"encoding/json"
	"errors"

	"agentvm/egress"
)

// ChangePolicy replaces the policy of a VM's network by what change makes of it, and returns it with the number of connections that it has cut.
// When another client changes it at the same time, change is called again, with what that one has made: both take effect. The error is
// egress.ErrPolicyChanged when the policy seems to be the same and is another for the VM's daemon, as one of another version of this program may say.
func ChangePolicy(ctx context.Context, v AnyVM, change func(egress.Policy) (egress.Policy, error)) (p egress.Policy, cut int, err error) {
	for last := ""; ; {
		if p, err = v.Policy(ctx); err != nil {
			return p, 0, err
		}
		version := p.Version()
		if version == last {
			return p, 0, egress.ErrPolicyChanged
		}
		last = version
		if p, err = change(p); err != nil {
			return p, 0, err
		}
		if cut, err = v.ReplacePolicy(ctx, version, p); !errors.Is(err, egress.ErrPolicyChanged) {
			return p, cut, err
		}
	}
}

// NetworkLog is the log of a VM's network, read while it grows. It belongs to one goroutine.
type NetworkLog struct{ lines growingLog }

// NetworkLog returns the log of a VM's network, whether the VM runs or not, from about the last so many bytes on. Close it.
func (s *Store) NetworkLog(name string, last int64) (*NetworkLog, error) {
	path, err := s.NetworkLogPath(name)
	if err != nil {
		return nil, err
	}
	return &NetworkLog{growingLog{path: path, last: last}}, nil
}

// Poll gives the events that were recorded since the last call to use. It does not wait.
func (l *NetworkLog) Poll(use func(egress.Event)) error {
	return l.lines.poll(func(line []byte) error {
		var e egress.Event
		if json.Unmarshal(line, &e) == nil && e.Kind != "" {
			use(e)
		}
		return nil
	})
}

// Close closes the file.
func (l *NetworkLog) Close() error { return l.lines.close() }
