// Package previewtest opens previews in a real browser, for tests of several packages. It is for tests only.
package previewtest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// Chromium finds the browser. The test is skipped where there is none, and fails in CI.
func Chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") == "true" && runtime.GOOS == "linux" {
		t.Fatal("chromium is missing: apt-get install chromium")
	}
	t.Skip("there is no chromium")
	return ""
}

// Browse opens a page in a browser with a home of its own. The function that it returns ends it and all its processes.
func Browse(t testing.TB, browser, url string) (stop func()) {
	t.Helper()
	_, stop = browse(t, browser, url)
	return stop
}

// browse is Browse that also returns the browser's profile.
func browse(t testing.TB, browser, url string, flags ...string) (profile string, stop func()) {
	t.Helper()
	home := t.TempDir()
	profile = filepath.Join(home, "profile")
	log, err := os.Create(filepath.Join(home, "log"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	command := exec.CommandContext(ctx, browser, append(flags, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync", "--no-proxy-server", "--no-zygote",
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE *.localhost, EXCLUDE 127.0.0.1",
		"--user-data-dir="+profile, "--remote-debugging-port=0", "--remote-debugging-address=127.0.0.1", url)...)
	command.Env = append(os.Environ(), "HOME="+home)
	command.Stdout, command.Stderr = log, log
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = 10 * time.Second
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	return profile, func() {
		cancel()
		_ = command.Wait() // says that it was interrupted
		_ = log.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("chromium says:\n%.4000s", text)
		}
		// Its helpers end after it, and still write.
		for range 200 {
			if err = os.RemoveAll(home); err == nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Errorf("the browser's files cannot be removed: %v", err)
	}
}
