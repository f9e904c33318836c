package budget

import (
	"sync"
	"testing"
)

func TestBudget(t *testing.T) {
	var warnings []Use
	b := New(1000, func(u Use) { warnings = append(warnings, u) })
	steps := []struct {
		what string
		do   func() bool
		want bool
		used int64
	}{
		{"a part", func() bool { return b.Take(300) }, true, 300},
		{"what one can do without", func() bool { return b.TakeWithin(200, 1, 2) }, true, 500},
		{"more of that", func() bool { return b.TakeWithin(1, 1, 2) }, false, 500},
		{"all but one", func() bool { return b.Take(499) }, true, 999},
		{"too much", func() bool { return b.Take(2) }, false, 999},
		{"the last", func() bool { return b.Take(1) }, true, 1000},
		{"beyond, by force", func() bool { return b.Charge(50) }, false, 1050},
		{"nothing left", func() bool { return b.Take(1) }, false, 1050},
		{"given back", func() bool { b.Give(551); return b.Take(1) }, true, 500},
		{"much again", func() bool { return b.Take(400) }, true, 900},
		{"below half", func() bool { b.Give(800); return b.Take(700) }, true, 800},
	}
	for _, s := range steps {
		if got := s.do(); got != s.want || b.Use().Used != s.used {
			t.Fatalf("%s: %v, %+v; want %v, %d used", s.what, got, b.Use(), s.want, s.used)
		}
	}
	if u := b.Use(); u.Limit != 1000 || u.Refused != 2 {
		t.Errorf("%+v", u)
	}
	if len(warnings) != 3 || warnings[0].Used != 999 || warnings[1].Used != 900 || warnings[2].Used != 800 {
		t.Errorf("warnings %+v", warnings)
	}
}

func TestNoBudget(t *testing.T) {
	var b *Budget
	if !b.Take(1<<62) || !b.TakeWithin(1<<62, 1, 8) || !b.Charge(1<<62) || b.Use() != (Use{}) {
		t.Error("no budget is a limit")
	}
	b.Give(1)
}

func TestBudgetOfMany(t *testing.T) {
	b := New(1000, func(Use) {})
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 1000 {
				if b.Take(100) {
					if u := b.Use(); u.Used > u.Limit {
						t.Errorf("%+v", u)
					}
					b.Give(100)
				}
			}
		})
	}
	group.Wait()
	if u := b.Use(); u.Used != 0 {
		t.Errorf("%+v is left", u)
	}
}
