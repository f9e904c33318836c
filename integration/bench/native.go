//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// nativeHost runs programs of Debian's port for this host's processor, in the archive's own root: the measure of what emulation costs.
type nativeHost struct{ root string }

// startNative unpacks the archive.
func (k *kit) startNative(ctx context.Context, archive string, files map[string][]byte) (*nativeHost, error) {
	h := &nativeHost{k.path("native")}
	if err := os.MkdirAll(h.root+"/root", 0o700); err != nil {
		return nil, err
	}
	if _, err := output(exec.CommandContext(ctx, "tar", "-C", h.root, "--no-same-owner", "-xf", archive)); err != nil {
		return nil, err
	}
	for _, folder := range []string{"dev", "proc", "tmp"} {
		if err := os.MkdirAll(h.root+"/"+folder, 0o755); err != nil {
			return nil, err
		}
	}
	for name, content := range files {
		if err := os.WriteFile(h.root+"/root/"+name, content, 0o700); err != nil { //nolint:gosec // a program among them
			return nil, err
		}
	}
	return h, nil
}

// run runs shell source with the host's devices, and returns its output and what it and all that it started took.
func (h *nativeHost) run(ctx context.Context, line string) (took cost, out string, err error) {
	const enter = `mount --rbind /dev "$0/dev" && mount --rbind /proc "$0/proc" && exec chroot "$0" /usr/bin/env -i PATH=/usr/bin:/usr/sbin HOME=/root /bin/sh -c "$1"`
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(ctx, "unshare", "--map-root-user", "--mount", "sh", "-c", enter, h.root, line)
	command.Stdout, command.Stderr = &stdout, &stderr
	start := time.Now()
	if err := command.Run(); err != nil {
		return cost{}, "", fmt.Errorf("%q on the host: %w: %s", line, err, strings.TrimSpace(stderr.String()))
	}
	return cost{time.Since(start), command.ProcessState.UserTime() + command.ProcessState.SystemTime()}, stdout.String(), nil
}
