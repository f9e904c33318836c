package vm_test

import (
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"agentvm/vm"
)

func TestProbeSpeed(t *testing.T) {
	c := config(t)
	c.Memory = vm.DefaultMemory
	if os.Getenv("V") != "" {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	warm, err := vm.Start(limited(t), c)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("KEEP") == "" {
		warm.Close()
	} else {
		defer warm.Close()
	}
	var starts, execs, seconds []time.Duration
	for i := range 30 {
		began := time.Now()
		v, err := vm.Start(limited(t), c)
		if err != nil {
			t.Fatal(err)
		}
		starts = append(starts, time.Since(began))
		i0 := v.Instructions()
		if _, err := v.Exec(limited(t), "true"); err != nil {
			t.Fatal(err)
		}
		execs = append(execs, time.Since(began))
		i1 := v.Instructions()
		b2 := time.Now()
		v.Exec(limited(t), "true")
		seconds = append(seconds, time.Since(b2))
		if i == 5 {
			t.Log("instructions at start", i0, "after exec", i1-i0, "2nd", v.Instructions()-i1)
		}
		v.Close()
	}
	for _, l := range [][]time.Duration{starts, execs, seconds} {
		slices.Sort(l)
		t.Log("min", l[0], "p50", l[len(l)/2], "p90", l[len(l)*9/10])
	}
}
