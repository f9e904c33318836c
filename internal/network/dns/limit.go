package dns

import (
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// limit is the guest's rate. A query above it gets SERVFAIL at once, which resolvers treat as temporary, and is
// neither looked up nor, except for one a second, reported: a guest must not fill the host's log.
type limit struct {
	rate   *rate.Limiter // nil: no limit
	now    func() time.Time
	logger *slog.Logger

	gauge gauge

	mu       sync.Mutex
	refused  int // since the last report
	reported time.Time
}

// gauge says when to warn about a limit: at 80 % of it, and again only after use was under 50 %.
type gauge struct {
	mu     sync.Mutex
	warned bool
}

func (g *gauge) note(used float64) (warn bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case used >= 0.8 && !g.warned:
		g.warned = true
		return true
	case used < 0.5:
		g.warned = false
	}
	return false
}

func newLimit(c Config) *limit {
	l := &limit{now: c.Now, logger: c.Logger}
	if c.QueriesPerSecond > 0 {
		burst := int(min(math.Ceil(2*c.QueriesPerSecond), 1e6))
		l.rate = rate.NewLimiter(rate.Limit(c.QueriesPerSecond), burst)
	}
	return l
}

// allow takes one query. When it is not allowed and a report is due, report says so.
func (l *limit) allow() (ok bool, report error) {
	if l.rate == nil {
		return true, nil
	}
	now := l.now()
	ok = l.rate.AllowN(now, 1)
	used := 1 - l.rate.TokensAt(now)/float64(l.rate.Burst())
	if l.gauge.note(used) {
		l.logger.Warn("the guest has used most of its DNS queries", "limit", "dns-queries", "a second", float64(l.rate.Limit()),
			"burst", l.rate.Burst())
	}
	if ok {
		return true, nil
	}
	return false, l.noteRefusal(now)
}

func (l *limit) noteRefusal(now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused++
	if now.Sub(l.reported) < time.Second {
		return nil
	}
	report := error(errRate)
	if l.refused > 1 {
		report = refusals{refusal(fmt.Sprintf("%s (%d queries refused)", errRate, l.refused)), l.refused}
	}
	l.reported, l.refused = now, 0
	return report
}
