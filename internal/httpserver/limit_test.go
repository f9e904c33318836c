package httpserver

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// visitor is a connection that http.Server has accepted.
type visitor struct {
	net.Conn
	limit  *Limit
	closed atomic.Bool
}

func (v *visitor) Close() error {
	v.closed.Store(true)
	return nil
}

func arrive(l *Limit, known bool) *visitor {
	v := &visitor{limit: l}
	ctx := l.Context(context.Background(), v)
	l.Track(v, http.StateNew)
	if known {
		l.Track(v, http.StateActive)
		Known((&http.Request{}).WithContext(ctx))
		l.Track(v, http.StateIdle)
	}
	return v
}

// closed lists which have been closed, and tells the limit.
func closed(list []*visitor) (which []int) {
	for i, v := range list {
		if v.closed.Swap(false) {
			which = append(which, i)
			v.limit.Track(v, http.StateClosed)
		}
	}
	return which
}

func TestLimit(t *testing.T) {
	l := &Limit{Max: 4, Strangers: 2}
	var list []*visitor
	for i, c := range []struct {
		known bool
		want  []int // that have been closed then
	}{
		{true, nil}, {false, nil}, {true, nil}, {false, nil}, // 0 to 3
		{false, []int{1}},                    // 4: a third stranger
		{true, []int{3}},                     // 5: a fifth connection, and two of four are strangers
		{true, []int{4}},                     // 6
		{true, []int{0}},                     // 7: all are known, and the first has waited longest
		{false, []int{2}},                    // 8: a stranger may show a key
		{false, []int{8}}, {false, []int{9}}, // 9, 10: but has no more room than the last one had
	} {
		list = append(list, arrive(l, c.known))
		if got := closed(list); !slices.Equal(got, c.want) {
			t.Fatalf("connection %d: closed %v, want %v", i, got, c.want)
		}
	}
	if l.Open() != 4 {
		t.Errorf("%d are open", l.Open())
	}
	for _, v := range list { // those that are known get requests
		l.Track(v, http.StateActive)
		l.mu.Lock()
		if l.open[v] != nil {
			l.open[v].known = true
		}
		l.mu.Unlock()
	}
	list = append(list, arrive(l, false))
	if got := closed(list); !slices.Equal(got, []int{11}) {
		t.Errorf("all connections have requests: closed %v", got)
	}
	for _, v := range list {
		if l.open[v] != nil {
			l.Track(v, http.StateHijacked)
		}
	}
	l.Wait()
	if l.Open() != 0 {
		t.Errorf("%d are open behind Wait", l.Open())
	}
}

func TestPatienceWithStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Limit{Max: 4, Patience: 10 * time.Second}
		list := []*visitor{arrive(l, true), arrive(l, false)}
		time.Sleep(5 * time.Second)
		list = append(list, arrive(l, false))
		l.Track(list[2], http.StateActive) // half a header
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := closed(list); !slices.Equal(got, []int{1}) {
			t.Errorf("after ten seconds: closed %v", got)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := closed(list); !slices.Equal(got, []int{2}) {
			t.Errorf("after an hour: closed %v", got)
		}
	})
}
