package daemon

import (
	"testing"
	"time"
)

// A daemon gives memory back once when it has come to rest, not while it works, and again only after it has worked.
func TestRest(t *testing.T) {
	freed := 0
	r := resting{free: func() { freed++ }}
	now := time.Unix(1, 0)
	look := func(want int, when string) {
		t.Helper()
		now = now.Add(restEvery)
		if r.look(now); freed != want {
			t.Fatalf("%s: memory was given back %d times, want %d", when, freed, want)
		}
	}
	var kept []byte
	work := func() {
		kept = make([]byte, restWorth) // which is too large for the stack
		kept[0] = 1
	}
	work()
	look(0, "at the first look")
	work()
	look(0, "after work")
	look(1, "at rest")
	look(1, "at rest still")
	work()
	look(1, "after work again")
	r.look(now.Add(restEvery / 2))
	if freed != 1 {
		t.Fatal("it looks too often")
	}
	look(2, "at rest again")
	_ = kept
}
