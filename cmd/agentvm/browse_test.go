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
	folder := filepath.Join(t.TempDir(), "links")
	for _, c := range []struct {
		name, script, err string
		wait              time.Duration
	}{
		{"done", `case "$0 $*" in *localhost*) exit 4;; esac; grep -q 'url=http://x.localhost:1/?a=b&amp;c"' "$0" && test "$(stat -c %a "$0" 2>/dev/null || stat -f %Lp "$0")" = 600`, "", time.Hour},
		{"failed", "exit 3", "no browser has opened the link, which is above: sh: exit status 3", time.Hour},
		{"the browser itself", "n=0; while [ -e " + running + " ] && [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done; ! [ -e " + running + " ]", "", time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := browse(t.Context(), []string{"sh", "-c", c.script}, folder, "http://x.localhost:1/?a=b&c", c.wait, time.Millisecond)
			if (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
				t.Errorf("%v, want %q", err, c.err)
			}
			if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
				t.Errorf("files with links are left: %v, %v", left, err)
			}
		})
	}
	if err := browse(t.Context(), []string{"agentvm-no-such-opener"}, folder, "http://x/", time.Hour, time.Hour); err == nil || !strings.Contains(err.Error(), "by hand") {
		t.Errorf("%v", err)
	}
}
