//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBrowse has openers that are done, fail, are not there, and are the browser itself.
func TestBrowse(t *testing.T) {
	running := filepath.Join(t.TempDir(), "running")
	if err := os.WriteFile(running, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(running) // which ends the last one
	for _, c := range []struct {
		name, script, err string
		wait              time.Duration
	}{
		{"done", `test "$0" = http://x.localhost:1/`, "", time.Hour},
		{"failed", "exit 3", "no browser has opened the link, which is above: sh: exit status 3", time.Hour},
		{"the browser itself", "n=0; while [ -e " + running + " ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done; ! [ -e " + running + " ]", "", time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := browse(t.Context(), []string{"sh", "-c", c.script}, "http://x.localhost:1/", c.wait)
			if (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
				t.Errorf("%v, want %q", err, c.err)
			}
		})
	}
	if err := browse(t.Context(), []string{"agentvm-no-such-opener"}, "http://x/", time.Hour); err == nil || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("%v", err)
	}
}
