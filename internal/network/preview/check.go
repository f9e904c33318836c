package preview

import (
	"context"
	"fmt"
)

// An index is the table as it was at a version of the file.
type index struct {
	version int64
	rows    map[[8]byte]row
}

// Check returns the preview of a token, if it is genuine, its time is not over and it was not revoked, by whatever process. Errors wrap
// ErrForged, ErrExpired, ErrRevoked or ErrUnknown; any other means that nothing could be found out, and gives no access either.
//
// It asks SQLite no more than whether something has changed, so it takes microseconds.
func (s *Store) Check(ctx context.Context, token string) (Preview, error) {
	t, err := s.key.Verify(token)
	if err != nil {
		return Preview{}, err
	}
	if !s.options.Now().Before(t.Expires) {
		return Preview{}, ErrExpired
	}
	now, err := s.current(ctx)
	if err != nil {
		return Preview{}, fmt.Errorf("check a preview: %w", err)
	}
	r, known := now.rows[t.Nonce]
	switch {
	case !known:
		return Preview{}, ErrUnknown
	case r.token() != t: // signed, but not for this
		return Preview{}, fmt.Errorf("%w: it is of another VM, port or time", ErrForged)
	case r.revoked != 0:
		return Preview{}, ErrRevoked
	}
	return r.preview(token), nil
}

// current returns an index that has all that was committed before the call.
func (s *Store) current(ctx context.Context) (*index, error) {
	version, err := s.dataVersion()
	if err != nil {
		return nil, err
	}
	if i := s.cached(); i != nil && i.version == version {
		return i, nil
	}
	select {
	case s.reload <- struct{}{}:
		defer func() { <-s.reload }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	// The version first: rows that are newer than it only mean that they are read once more.
	if version, err = s.dataVersion(); err != nil {
		return nil, err
	}
	if i := s.cached(); i != nil && i.version == version {
		return i, nil
	}
	rows, err := s.readRows(ctx)
	if err != nil {
		return nil, err
	}
	i := &index{version: version, rows: rows}
	s.mu.Lock()
	s.index = i
	s.mu.Unlock()
	return i, nil
}

func (s *Store) cached() *index {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.index
}

// dataVersion is a number that differs from the one before when a commit lies between them. It has no context: one that can be cancelled
// costs more than the question.
func (s *Store) dataVersion() (version int64, err error) {
	if s.changes() == nil {
		return 0, ErrClosed
	}
	err = s.version.QueryRow().Scan(&version)
	return version, err
}

func (s *Store) readRows(ctx context.Context) (map[[8]byte]row, error) {
	list, err := s.reads.QueryContext(ctx, "SELECT "+rowColumns+" FROM preview WHERE expires > ?", s.options.Now().Unix())
	if err != nil {
		return nil, err
	}
	defer list.Close()
	rows := make(map[[8]byte]row)
	for list.Next() {
		var r row
		if err := r.scan(list); err != nil {
			return nil, err
		}
		rows[r.nonce] = r
	}
	return rows, list.Err()
}
