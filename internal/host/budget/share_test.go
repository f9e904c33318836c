package budget

import (
	"sync"
	"testing"
)

// TestShare: whatever others have taken, there is something for the next.
func TestShare(t *testing.T) {
	whole := New(1024, nil)
	take := func(s *Share) (n int64) {
		var group sync.WaitGroup
		for range 2000 {
			group.Go(func() { s.Take(1) })
		}
		group.Wait()
		return s.used
	}
	shares := make([]*Share, 5)
	for i, want := range []int64{512, 256, 128, 64, 32} {
		shares[i] = whole.Share()
		if got := take(shares[i]); got != want {
			t.Errorf("share %d took %d, want %d", i, got, want)
		}
	}
	for _, s := range shares {
		s.Give(s.used)
	}
	if use := whole.Use(); use.Used != 0 || use.Refused == 0 {
		t.Errorf("%+v", use)
	}
	var none *Share
	if !none.Take(1 << 40) {
		t.Error("no share has a limit")
	}
	none.Give(1 << 40)
}
