package dns

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
)

// TestFlights: twenty at once make one question; another name is another.
func TestFlights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flights
		calls := 0
		want := &result{}
		got := make(chan *result, 20)
		for range 20 {
			go func() {
				r, _ := f.do(t.Context(), key{"a", dns.TypeA}, func() (*result, error) {
					calls++
					time.Sleep(time.Second)
					return want, nil
				})
				got <- r
			}()
		}
		synctest.Wait()
		other, _ := f.do(t.Context(), key{"a", dns.TypeAAAA}, func() (*result, error) { return &result{}, nil })
		if other == want {
			t.Error("another type got the same result")
		}
		for range 20 {
			if r := <-got; r != want {
				t.Error("a query got another result")
			}
		}
		if calls != 1 || len(f.now) != 0 {
			t.Errorf("%d calls, %d flights left", calls, len(f.now))
		}
	})
}

// TestFlightTakeOver: who waits for a query that is given up does the work itself; a failure is shared.
func TestFlightTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flights
		k := key{"a", dns.TypeA}
		first, giveUp := context.WithCancel(t.Context())
		ends := make(chan error, 2)
		go func() {
			_, err := f.do(first, k, func() (*result, error) { <-first.Done(); return nil, first.Err() })
			ends <- err
		}()
		synctest.Wait()
		failed := errors.New("failed")
		for range 2 {
			go func() {
				_, err := f.do(t.Context(), k, func() (*result, error) { time.Sleep(time.Second); return nil, failed })
				ends <- err
			}()
		}
		synctest.Wait()
		giveUp()
		if err := <-ends; !errors.Is(err, context.Canceled) {
			t.Errorf("the first: %v", err)
		}
		for range 2 {
			if err := <-ends; err != failed {
				t.Errorf("the others: %v", err)
			}
		}
	})
}

// TestFlightWaitsNoLongerThanItsQuery: not even for a leader that does not come back.
func TestFlightWaitsNoLongerThanItsQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flights
		k := key{"a", dns.TypeA}
		release := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			f.do(t.Context(), k, func() (*result, error) { <-release; return nil, nil })
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.do(ctx, k, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		close(release)
		<-ended
	})
}

// TestFlightPanic: whatever happens to the leader, the flight ends.
func TestFlightPanic(t *testing.T) {
	var f flights
	func() {
		defer func() { recover() }()
		f.do(t.Context(), key{}, func() (*result, error) { panic("a bug") })
	}()
	if _, err := f.do(t.Context(), key{}, func() (*result, error) { return nil, nil }); err != nil || len(f.now) != 0 {
		t.Errorf("%v, %d flights", err, len(f.now))
	}
}
