package vm_test

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"agentvm/vm"
)

func TestProbe(t *testing.T) {
	c := config(t)
	c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	for range 3 {
		began := time.Now()
		v, err := vm.Start(limited(t), c)
		if err != nil {
			t.Fatal(err)
		}
		started := time.Since(began)
		r, err := v.Exec(limited(t), "date +%s; hostname; cat /etc/machine-id /run/agentvm/generation; head -c 8 /dev/urandom | od -x; ip a | grep ether")
		t.Log(started, time.Since(began), err)
		if r != nil {
			t.Logf("%s", r.Stdout)
		}
		forks, err := v.Fork(limited(t), 2, vm.ForkOptions{})
		t.Log(err)
		for _, f := range forks {
			r, err := f.Exec(limited(t), "date +%s; hostname; cat /etc/machine-id /run/agentvm/generation; head -c 8 /dev/urandom | od -x; ip a | grep ether")
			t.Log(err)
			if r != nil {
				t.Logf("%s %s", r.Stdout, r.Stderr)
			}
			f.Close()
		}
		v.Close()
	}
}
