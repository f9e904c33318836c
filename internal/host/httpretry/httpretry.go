// Package httpretry repeats HTTP requests that a server has put off with 429, 503 or another temporary failure.
package httpretry

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"
)

const (
	attempts       = 5
	defaultBackoff = 300 * time.Millisecond // doubled after each attempt
	// maxWait bounds one wait. A server that asks for a longer one, as for the rest of an hour, has refused.
	maxWait = time.Minute
	// maxAll bounds all waits for one request.
	maxAll = 2 * time.Minute
	// maxDrained is how much of an answer that is not wanted is read, so that its connection is used again.
	maxDrained = 64 << 10
)

// Transport is an http.RoundTripper that waits, as long as Retry-After says (RFC 9110, 10.2.3) or else with a growing pause, and asks again.
// The last answer is returned as it is. Requests with a body are repeated if they have GetBody, and only after 429 and 503, with which
// the server says that it has done nothing.
type Transport struct {
	Base http.RoundTripper
	// Backoff is the first pause without Retry-After. Default: 300 ms.
	Backoff time.Duration
	// Logger gets a line for each wait. May be nil.
	Logger *slog.Logger
	// Wait waits (default: with a timer).
	Wait func(context.Context, time.Duration) error
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	pause, left := t.Backoff, maxAll
	if pause <= 0 {
		pause = defaultBackoff
	}
	for n := 1; ; n++ {
		answer, err := t.Base.RoundTrip(r)
		if err != nil || n == attempts || !again(r, answer.StatusCode) {
			return answer, err
		}
		wait, asked := retryAfter(answer.Header, time.Now())
		if !asked {
			wait = pause
			pause *= 2
		}
		if wait > min(maxWait, left) {
			return answer, nil
		}
		left -= wait
		_, _ = io.CopyN(io.Discard, answer.Body, maxDrained)
		_ = answer.Body.Close()
		if t.Logger != nil {
			t.Logger.Info("the server asks to try later", "host", r.URL.Host, "status", answer.StatusCode, "wait", wait)
		}
		if err := t.wait(r.Context(), wait); err != nil {
			return nil, err
		}
		if r, err = repeat(r); err != nil {
			return nil, err
		}
	}
}

// again reports whether a request may be sent again after an answer.
func again(r *http.Request, status int) bool {
	if r.Body != nil && r.Body != http.NoBody && r.GetBody == nil {
		return false
	}
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		return r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == ""
	}
	return false
}

// repeat returns a copy of the request with a body that has not been read.
func repeat(r *http.Request) (*http.Request, error) {
	r = r.Clone(r.Context())
	if r.GetBody == nil {
		return r, nil
	}
	body, err := r.GetBody()
	r.Body = body
	return r, err
}

// retryAfter reads the header: seconds or a date.
func retryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date // the server's clock may be another one
	}
	return max(at.Sub(now), 0), true
}

func (t *Transport) wait(ctx context.Context, d time.Duration) error {
	if t.Wait != nil {
		return t.Wait(ctx, d)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
