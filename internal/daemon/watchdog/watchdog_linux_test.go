package watchdog

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
)

// endless is a module whose run never returns.
var endless = []byte("\x00asm\x01\x00\x00\x00" + "\x01\x04\x01\x60\x00\x00" + "\x03\x02\x01\x00" + "\x07\x07\x01\x03run\x00\x00" +
	"\x0a\x09\x01\x07\x00\x03\x40\x0c\x00\x0b\x0b")

const role = "AGENTVM_TEST_WATCHDOG"

// TestMain is also the processes that the tests watch.
func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "frozen":
		resetting(time.Second)
		go runEndless()
		for {
			runtime.GC() // waits for runEndless sooner or later, and everything for that
		}
	case "one processor":
		runtime.GOMAXPROCS(1)
		resetting(time.Second)
		runEndless()
	case "busy":
		resetting(time.Second)
		busyUntil(4 * time.Second)
		os.Stdout.WriteString("lives\n")
	case "late":
		if _, err := Start(time.Second); err != nil {
			panic(err)
		}
		busyUntil(time.Minute)
	case "asleep":
		if _, err := Start(100 * time.Millisecond); err != nil {
			panic(err)
		}
		time.Sleep(2 * time.Second)
		os.Stdout.WriteString("lives\n")
	case "stopped timer":
		timer, err := Start(time.Second)
		if err == nil {
			stop := make(chan struct{})
			close(stop)
			err = timer.Run(stop)
		}
		if err != nil {
			panic(err)
		}
		busyUntil(3 * time.Second)
		os.Stdout.WriteString("lives\n")
	}
}

// resetting resets a timer as long as goroutines run.
func resetting(limit time.Duration) {
	timer, err := Start(limit)
	if err != nil {
		panic(err)
	}
	go func() { _ = timer.Run(nil) }()
}

// busyUntil uses processor time until the process has used so much.
func busyUntil(limit time.Duration) {
	for {
		var use syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &use)
		if time.Duration(use.Utime.Nano()+use.Stime.Nano()) > limit {
			return
		}
	}
}

func runEndless() {
	ctx := context.Background()
	instance, err := wazero.NewRuntime(ctx).Instantiate(ctx, endless)
	if err != nil {
		panic(err)
	}
	_, _ = instance.ExportedFunction("run").Call(ctx)
}

func TestTimer(t *testing.T) {
	for name, ends := range map[string]bool{
		"frozen": true, "one processor": true, "late": true,
		"busy": false, "asleep": false, "stopped timer": false,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := exec.CommandContext(t.Context(), os.Args[0])
			c.Env = append(os.Environ(), role+"="+name)
			watch := time.AfterFunc(10*time.Minute, func() { _ = c.Process.Kill() })
			defer watch.Stop()
			out, err := c.CombinedOutput()
			var exit *exec.ExitError
			switch status, _ := c.ProcessState.Sys().(syscall.WaitStatus); {
			case ends && (!errors.As(err, &exit) || !status.Signaled() || status.Signal() != Signal):
				t.Errorf("%v\n%s", err, out)
			case !ends && (err != nil || !strings.HasSuffix(string(out), "lives\n")):
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
