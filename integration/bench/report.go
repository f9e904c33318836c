//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"agentvm/internal/host/platform"
	"agentvm/internal/machine"
	"agentvm/internal/machine/kernel"
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

// mountsPage is the page of docs/measurements that has the figures of mounts. All others are in specification.md.
const mountsPage = "mounts.md"

// storagePage is the page with the figures of images, which -update leaves alone: they stand between others.
const storagePage = "storage.md"

// protocolsPage is the page with the figures of servers, which -update leaves alone, too.
const protocolsPage = "protocols.md"

// figure is a row of the table.
type figure struct {
	page   string // "": specification.md
	name   string
	unit   string
	value  float64
	spread samples // the readings behind value, when there are several
	bar    bar
}

// report prints samples as they come and keeps the figures for the end.
type report struct {
	out     io.Writer
	about   string // what was measured on what
	figures []figure
	leftOut []string
}

// header says what was measured on what, in benchstat's form.
func (r *report) header(k *kit) {
	r.about = fmt.Sprintf("goos: %s\ngoarch: %s\npkg: agentvm/integration/bench\ncpu: %s\ncpus: %d\ndate: %s\nload: %s\ngo: %s\n",
		runtime.GOOS, runtime.GOARCH, processorName(), runtime.NumCPU(), time.Now().UTC().Format(time.RFC3339), loadAverage(), runtime.Version()) +
		fmt.Sprintf("machine: %s\nkernel: %s\nimage: %s\nqemu: %s\n", machine.ModuleDigest(platform.RISCV64, 1), kernel.Version, k.image.Name, qemuVersion())
	fmt.Fprint(r.out, r.about)
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

// finish prints the table of figures and what was left out, and returns how many missed their bar.
func (r *report) finish() (missed int) {
	fmt.Fprintf(r.out, "\n%s", table(r.figures))
	for _, f := range r.figures {
		if !f.bar.met(f.value) {
			missed++
		}
	}
	for _, line := range r.leftOut {
		fmt.Fprintln(r.out, "\nnot measured:", line)
	}
	fmt.Fprintf(r.out, "\nload average at the end: %s\n", loadAverage())
	return missed
}

// table is figures as Markdown.
func table(figures []figure) string {
	var t strings.Builder
	t.WriteString("| figure | median | lowest to highest | unit | bar | met |\n| --- | ---: | :---: | --- | ---: | --- |\n")
	for _, f := range figures {
		fmt.Fprintf(&t, "| %s | %s | %s | %s | %s | %s |\n", f.name, number(f.value), f.spread.bounds(), f.unit, f.bar, f.verdict())
	}
	return t.String()
}

func (f figure) verdict() string {
	switch {
	case !f.bar.set:
		return ""
	case f.bar.met(f.value):
		return "yes"
	default:
		return "**no**"
	}
}

// number shows three digits, and no exponent.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

func (s samples) bounds() string {
	if len(s) < 2 {
		return ""
	}
	return number(s.quantile(0)) + " to " + number(s.quantile(1))
}
