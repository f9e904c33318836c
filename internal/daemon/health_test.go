package daemon

import (
	"strings"
	"testing"
	"time"

	"agentvm/images"
)

// TestHealthcheck follows the states of a VM whose image has a HEALTHCHECK, and of one that has none.
func TestHealthcheck(t *testing.T) {
	v := newFakeVM()
	const startPeriod = 3 * time.Second // in which "starting" must be seen
	v.image.Healthcheck = &images.Healthcheck{Test: []string{"CMD", "health"}, Interval: time.Nanosecond, Retries: 3, StartPeriod: startPeriod}
	v.health.Store(7)
	began := time.Now()
	d := startFake(t, v)
	c := d.connect(t)
	if err := c.AwaitReady(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	await := func(want string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); d.status(t).Info.Health != want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the state is %q, not %q", d.status(t).Info.Health, want)
			}
		}
	}
	await("starting")
	await("unhealthy")
	if took := time.Since(began); took < startPeriod {
		t.Errorf("unhealthy after %v, in the start period", took)
	}
	v.health.Store(0)
	await("healthy")
	v.paused.Store(true)
	v.health.Store(1)
	time.Sleep(100 * time.Millisecond)
	if got := d.status(t).Info.Health; got != "healthy" {
		t.Errorf("%s while it is paused", got)
	}
	v.paused.Store(false)
	await("unhealthy")
	if s := d.status(t); s.Info.Jobs != 0 {
		t.Errorf("%d jobs", s.Info.Jobs)
	}
	if err := c.Stop(t.Context(), time.Second); err != nil {
		t.Error(err)
	}
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
}

func TestHealthCommand(t *testing.T) {
	for _, test := range []struct {
		check *images.Healthcheck
		want  string
	}{
		{nil, ""}, {&images.Healthcheck{}, ""}, {&images.Healthcheck{Test: []string{"NONE"}}, ""}, {&images.Healthcheck{Test: []string{"CMD"}}, ""},
		{&images.Healthcheck{Test: []string{"CMD-SHELL", "a b"}}, "/bin/sh -c a b"}, {&images.Healthcheck{Test: []string{"CMD", "a", "b"}}, "a b"},
		{&images.Healthcheck{Test: []string{"OTHER", "a"}}, ""},
	} {
		if got := strings.Join(healthCommand(test.check), " "); got != test.want {
			t.Errorf("%+v runs %q, want %q", test.check, got, test.want)
		}
	}
}

// TestHealthcheckThatHangs ends a check at its time-out, and the VM while one runs.
func TestHealthcheckThatHangs(t *testing.T) {
	v := newFakeVM()
	v.image.Healthcheck = &images.Healthcheck{Test: []string{"CMD", "sleep"}, Interval: time.Nanosecond, Timeout: time.Nanosecond, Retries: 1}
	d := startFake(t, v)
	c := d.connect(t)
	for end := time.Now().Add(20 * time.Second); d.status(t).Info.Health != "unhealthy"; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the state is %q", d.status(t).Info.Health)
		}
	}
	if err := c.Stop(t.Context(), time.Second); err != nil {
		t.Error(err)
	}
	if err := d.wait(t); err != nil {
		t.Error(err)
	}
}

// startFake starts a daemon of that VM that checks its health often.
func startFake(t *testing.T, v *fakeVM) *inside {
	t.Helper()
	d := &inside{store: Store{Dir: t.TempDir(), Version: "test"}, vm: v, ended: make(chan error, 1)}
	d.restart(t, Config{}, timing{healthShortest: 10 * time.Millisecond}, nil)
	return d
}
