package refcount

import (
	"errors"
	"sync"
	"testing"
)

func TestMap(t *testing.T) {
	var freed []int
	s := Map[int]{Free: func(v int) { freed = append(freed, v) }}
	made := 0
	next := func() (int, error) { made++; return made, nil }
	var all sync.WaitGroup
	entries := make([]*Ref[int], 8)
	for i := range entries {
		all.Go(func() {
			e, err := s.Acquire("a", next)
			if err != nil || e.Value != 1 {
				t.Errorf("%+v, %v", e, err)
			}
			entries[i] = e
		})
	}
	all.Wait()
	entries[0].Forget()
	fresh, err := s.Acquire("a", next)
	if err != nil || fresh.Value != 2 {
		t.Errorf("what was forgotten is given again: %+v, %v", fresh, err)
	}
	held := entries[0].Retain()
	for _, e := range entries {
		e.Release()
	}
	if len(freed) != 0 {
		t.Errorf("freed %v while it is held", freed)
	}
	held.Release()
	if len(freed) != 1 || freed[0] != 1 || s.entries["a"] != fresh.entry {
		t.Errorf("freed %v, there is %v", freed, s.entries)
	}
	fresh.Release()
	if len(freed) != 2 || len(s.entries) != 0 {
		t.Errorf("freed %v, there is %v", freed, s.entries)
	}
}

func TestMapFails(t *testing.T) {
	s := Map[int]{Free: func(int) { t.Error("what was never made is freed") }}
	broken := errors.New("broken")
	if _, err := s.Acquire("a", func() (int, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	e, err := s.Acquire("a", func() (int, error) { return 3, nil })
	if err != nil || e.Value != 3 || len(s.entries) != 1 {
		t.Errorf("the next attempt: %v, %v", e, err)
	}
}
