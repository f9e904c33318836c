package vm

import (
	"errors"
	"sync"
	"testing"
)

func TestShared(t *testing.T) {
	var freed []int
	s := shared[int]{free: func(v int) { freed = append(freed, v) }}
	made := 0
	next := func() (int, error) { made++; return made, nil }
	var all sync.WaitGroup
	entries := make([]*sharedEntry[int], 8)
	for i := range entries {
		all.Go(func() {
			e, err := s.acquire("a", next)
			if err != nil || e.value != 1 {
				t.Errorf("%+v, %v", e, err)
			}
			entries[i] = e
		})
	}
	all.Wait()
	entries[0].forget()
	fresh, err := s.acquire("a", next)
	if err != nil || fresh.value != 2 {
		t.Errorf("what was forgotten is given again: %+v, %v", fresh, err)
	}
	held := entries[0].retain()
	for _, e := range entries {
		e.release()
	}
	if len(freed) != 0 {
		t.Errorf("freed %v while it is held", freed)
	}
	held.release()
	if len(freed) != 1 || freed[0] != 1 || s.entries["a"] != fresh {
		t.Errorf("freed %v, there is %v", freed, s.entries)
	}
	fresh.release()
	if len(freed) != 2 || len(s.entries) != 0 {
		t.Errorf("freed %v, there is %v", freed, s.entries)
	}
}

func TestSharedFails(t *testing.T) {
	s := shared[int]{free: func(int) { t.Error("what was never made is freed") }}
	broken := errors.New("broken")
	if _, err := s.acquire("a", func() (int, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	e, err := s.acquire("a", func() (int, error) { return 3, nil })
	if err != nil || e.value != 3 || len(s.entries) != 1 {
		t.Errorf("the next attempt: %v, %v", e, err)
	}
}
