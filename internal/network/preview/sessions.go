package preview

import (
	"context"
	"sync"
	"time"
)

// checkInterval is how long a stream can outlive a revocation by another process, or its preview's time.
const checkInterval = 100 * time.Millisecond

// collectInterval is how often a server removes expired previews.
const collectInterval = 10 * time.Minute

// sessions are the requests that are being served, by token, so that those of a preview can be cut.
type sessions struct {
	first chan struct{} // has something after the first of them came

	mu   sync.Mutex
	open map[string]map[*session]struct{}
}

type session struct {
	token  string
	cancel context.CancelCauseFunc
}

func newSessions() *sessions {
	return &sessions{first: make(chan struct{}, 1), open: make(map[string]map[*session]struct{})}
}

// add returns a context that is cancelled when the token is cut.
func (s *sessions) add(ctx context.Context, token string) (context.Context, *session) {
	ctx, cancel := context.WithCancelCause(ctx)
	one := &session{token: token, cancel: cancel}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[token] == nil {
		s.open[token] = make(map[*session]struct{})
	}
	s.open[token][one] = struct{}{}
	select {
	case s.first <- struct{}{}:
	default: // the watcher is going to look
	}
	return ctx, one
}

func (s *sessions) remove(one *session) {
	s.mu.Lock()
	delete(s.open[one.token], one)
	if len(s.open[one.token]) == 0 {
		delete(s.open, one.token)
	}
	s.mu.Unlock()
	one.cancel(context.Canceled)
}

func (s *sessions) tokens() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for token := range s.open {
		list = append(list, token)
	}
	return list
}

func (s *sessions) cut(token string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for one := range s.open[token] {
		one.cancel(why)
	}
}

// watch cuts what is revoked or expires while it is being served, until the server ends. It sleeps while nothing is served.
func (s *Server) watch() {
	collect := time.NewTicker(collectInterval)
	defer collect.Stop()
	for {
		changed := s.cfg.Store.changes() // before looking, so that nothing is missed
		open := s.cutEnded()
		var again <-chan time.Time
		var first <-chan struct{}
		if open {
			again = time.After(checkInterval)
		} else {
			first = s.sessions.first
		}
		select {
		case <-s.life.Done():
			return
		case <-changed:
		case <-again:
		case <-first:
		case <-collect.C:
			if _, err := s.cfg.Store.Collect(s.life); err != nil {
				s.log.Warn("expired previews are not removed", "err", err)
			}
		}
	}
}

// cutEnded says whether anything is being served.
func (s *Server) cutEnded() bool {
	open := s.sessions.tokens()
	for _, token := range open {
		if _, err := s.cfg.Store.Check(s.life, token); err != nil {
			s.sessions.cut(token, err)
		}
	}
	return len(open) > 0
}
