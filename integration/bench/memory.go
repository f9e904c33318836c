//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// restTime is how long named VMs rest before their memory is counted: by then their daemons have given back what they do not need.
const restTime = 45 * time.Second

// measureMemory counts what named VMs take that have executed one command and do nothing since.
func measureMemory(ctx context.Context, b *bench) error {
	if err := b.kit.build(ctx); err != nil {
		return err
	}
	ours := installation{"new", b.kit.path("agentvm"), b.kit.path("idle")}
	if err := ours.prepare(ctx); err != nil { // which makes the base
		return err
	}
	var names []string
	defer func() {
		_ = ours.run(context.WithoutCancel(ctx), append([]string{"rm", "-f", "live"}, names...)...)
	}()
	counts := []int{8}
	if !b.quick {
		counts = append(counts, 100)
	}
	for _, n := range counts {
		before, err := availableMemory()
		if err != nil {
			return err
		}
		began := len(names)
		for len(names) < n {
			name := fmt.Sprint("idle", len(names))
			names = append(names, name)
			if err := ours.run(ctx, "start", "-q", name, "--image", "busybox"); err != nil {
				return err
			}
			if err := ours.run(ctx, "exec", "-n", name, "true"); err != nil {
				return err
			}
		}
		select {
		case <-time.After(restTime):
		case <-ctx.Done():
			return ctx.Err()
		}
		after, err := availableMemory()
		if err != nil {
			return err
		}
		if err := ours.addMemory(b, names); err != nil {
			return err
		}
		b.report.add(figure{name: fmt.Sprint("memory that the host has less for each of ", n-began, " more"), unit: "MB", value: (before - after) / float64(n-began)})
	}
	return nil
}

// addMemory reports the mean of what the daemons of VMs have, by what it is.
func (s installation) addMemory(b *bench, names []string) error {
	sums := map[string]float64{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(s.store, "vms", name, "state.json"))
		if err != nil {
			return err
		}
		var state struct{ Pid int }
		if err := json.Unmarshal(text, &state); err != nil {
			return err
		}
		if err := addMappings(sums, state.Pid); err != nil {
			return err
		}
	}
	n := float64(len(names))
	all := 0.0
	for _, sum := range sums {
		all += sum / n
	}
	what := fmt.Sprint("each of ", len(names), " idle named VMs, proportional share")
	limit := bar{}
	if len(names) == 8 {
		limit = atMost(12)
	}
	b.report.value(fmt.Sprint("Memory/named/", len(names)), all, "MB")
	b.report.add(figure{name: what, unit: "MB", value: all, bar: limit})
	kinds := make([]string, 0, len(sums))
	for kind := range sums {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	for _, kind := range kinds {
		b.report.add(figure{name: "of " + what + ": " + kind, unit: "MB", value: sums[kind] / n})
	}
	return nil
}

// addMappings adds a process's share of the memory that it uses, by what is mapped, in millions of bytes.
func addMappings(sums map[string]float64, pid int) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return err
	}
	defer f.Close()
	kind := ""
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 5 && strings.Contains(fields[0], "-") {
			kind = kindOfMapping(fields[1], strings.Join(fields[5:], " "))
			continue
		}
		var kib float64
		if n, _ := fmt.Sscanf(lines.Text(), "Pss: %f kB", &kib); n == 1 {
			sums[kind] += kib * 1024 / 1e6
		}
		if n, _ := fmt.Sscanf(lines.Text(), "Anonymous: %f kB", &kib); n == 1 && kind == imageMapping { // which nothing else has
			sums[kind] -= kib * 1024 / 1e6
			sums["pages of the machine's image that it has written"] += kib * 1024 / 1e6
		}
	}
	return lines.Err()
}

// imageMapping is what a machine continues from.
const imageMapping = "the machine's image"

func kindOfMapping(mode, path string) string {
	switch {
	case strings.Contains(path, "/bases/"):
		return imageMapping
	case strings.Contains(path, "agentvm-code"):
		return "native code"
	case strings.Contains(path, "agentvm-entries"):
		return "table of native code"
	case strings.HasPrefix(path, "/"):
		return "the program's file"
	case strings.Contains(mode, "x"):
		return "the module's code"
	}
	return "Go's memory, and the machine's that is in no image"
}

// availableMemory is what programs could have of the host's memory, in millions of bytes.
func availableMemory() (float64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %f kB", &kib); n == 1 {
			return kib * 1024 / 1e6, nil
		}
	}
	return 0, errors.New("/proc/meminfo says nothing of MemAvailable")
}
