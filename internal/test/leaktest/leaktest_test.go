package leaktest

import (
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

// TestFind has a goroutine that stays, one that takes longer than goleak waits, and none.
func TestFind(t *testing.T) {
	stay := make(chan struct{})
	go func() { <-stay }()
	if err := find(0); err == nil {
		t.Error("a goroutine that stays is not found")
	}
	if code := Check(3); code != 3 {
		t.Errorf("tests that failed: exit code %d", code)
	}
	time.AfterFunc(time.Second, func() { close(stay) })
	if err := find(maxWait); err != nil {
		t.Errorf("one that ends after a second: %v", err)
	}
	if code := Check(0); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
