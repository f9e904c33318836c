//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"agentvm/emulator"
	"agentvm/kernel"
)

// bar is what a figure must reach. The zero value asks for nothing.
type bar struct {
	limit float64
	least bool // the figure must not be below the limit, else not above
	set   bool
}

func atMost(limit float64) bar  { return bar{limit: limit, set: true} }
func atLeast(limit float64) bar { return bar{limit: limit, least: true, set: true} }

func (b bar) met(value float64) bool {
	switch {
	case !b.set:
		return true
	case b.least:
		return value >= b.limit
	default:
		return value <= b.limit
	}
}

func (b bar) String() string {
	switch {
	case !b.set:
		return ""
	case b.least:
		return fmt.Sprintf(">= %g", b.limit)
	default:
		return fmt.Sprintf("<= %g", b.limit)
	}
}

// figure is a row of the table.
type figure struct {
	name   string
	unit   string
	value  float64
	spread samples // the readings behind value, when there are several
	bar    bar
}

// report prints samples as they come and keeps the figures for the end.
type report struct {
	out     io.Writer
	figures []figure
	leftOut []string
}

// header says what was measured on what, in benchstat's form.
func (r *report) header(k *kit) {
	fmt.Fprintf(r.out, "goos: %s\ngoarch: %s\npkg: agentvm/integration/bench\ncpu: %s\n", runtime.GOOS, runtime.GOARCH, processorName())
	fmt.Fprintf(r.out, "cpus: %d\nload: %s\ngo: %s\nmachine: %s\nkernel: %s\nimage: %s\nqemu: %s\n",
		runtime.NumCPU(), loadAverage(), runtime.Version(), emulator.ModuleDigest(), kernel.Version, k.image.Name, qemuVersion())
}

func processorName() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func loadAverage() string {
	text, _ := os.ReadFile("/proc/loadavg")
	return strings.TrimSpace(string(text))
}

// cost prints one run of a benchmark.
func (r *report) cost(name string, c cost) {
	fmt.Fprintf(r.out, "Benchmark%s 1 %d ns/op %d cpu-ns/op\n", name, c.wall.Nanoseconds(), c.cpu.Nanoseconds())
}

// value prints one reading of something else than time.
func (r *report) value(name string, value float64, unit string) {
	fmt.Fprintf(r.out, "Benchmark%s 1 %.6g %s\n", name, value, unit)
}

func (r *report) add(f figure) { r.figures = append(r.figures, f) }

func (r *report) leaveOut(part string, why error) {
	r.leftOut = append(r.leftOut, fmt.Sprintf("%s: %v", part, why))
}

// table prints the figures and returns how many missed their bar.
func (r *report) table() (missed int) {
	fmt.Fprint(r.out, "\n| figure | median | lowest to highest | unit | bar | met |\n| --- | ---: | :---: | --- | ---: | --- |\n")
	for _, f := range r.figures {
		met := ""
		if f.bar.set {
			met = "yes"
			if !f.bar.met(f.value) {
				met = "**no**"
				missed++
			}
		}
		fmt.Fprintf(r.out, "| %s | %.3g | %s | %s | %s | %s |\n", f.name, f.value, f.spread.bounds(), f.unit, f.bar, met)
	}
	for _, line := range r.leftOut {
		fmt.Fprintln(r.out, "\nnot measured:", line)
	}
	fmt.Fprintf(r.out, "\nload average at the end: %s\n", loadAverage())
	return missed
}

func (s samples) bounds() string {
	if len(s) < 2 {
		return ""
	}
	return fmt.Sprintf("%.3g to %.3g", s.quantile(0), s.quantile(1))
}
