//go:build linux

// Command bench measures agentvm against the numbers that docs/measurements/specification.md promises, and against QEMU's emulation of
// the same computer. `make bench` runs all of it in a few minutes, with -quick in about one.
//
// Each comparison runs its sides in turn (A B A B ...) in one run of this program, because shared computers change their
// speed from minute to minute: ratios hold, absolute figures are of that minute. Every sample is printed as a line that
// benchstat reads; a table of figures and bars ends the output.
//
// It needs Linux, a Go toolchain and, each for its comparison, Debian's qemu-system-riscv64, riscv64-linux-gnu-gcc and
// clang-19 with lld-19. A part whose tools are missing is left out and named at the end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
)

func main() {
	var o options
	flag.BoolVar(&o.quick, "quick", false, "few rounds, about a minute: to see that it works, not to quote")
	flag.BoolVar(&o.update, "update", false, "put the figures into docs/measurements")
	only := flag.String("run", "", "measure only the parts whose names match this regular expression: "+strings.Join(partNames(), " "))
	flag.StringVar(&o.debian, "debian", "", "for the part mounts: the directory that integration/bench/debian.sh has made")
	flag.StringVar(&o.image, "image", "", "for the part image: the archive that integration/bench/image.sh has made")
	flag.StringVar(&o.programs, "programs", "", "for the part programs: the archive that make debian-image has made")
	flag.StringVar(&o.native, "native", "", "for the part programs: an archive of the same programs for this host's processor, which make debian-native has made")
	flag.StringVar(&o.arm64, "arm64", "", "for the part arm64: the archive that integration/bench/arm64.sh has made")
	flag.StringVar(&o.old, "old", "", "for the part against: an earlier agentvm to compare with")
	load := flag.String("workload", "", "of the parts cold, translation, programs, arm64, workloads and mounts, measure only the workloads whose names match this regular expression")
	flag.Parse()
	if err := o.choose(*only, *load); err != nil || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "bench:", errors.Join(err, flag.CommandLine.Parse([]string{"-h"})))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	missed, err := run(ctx, o, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	if missed > 0 {
		os.Exit(1)
	}
}

type options struct {
	quick, update bool
	only          *regexp.Regexp // names of parts
	workload      *regexp.Regexp // of the parts that have such names
	debian        string         // programs for measureMounts
	image         string         // for measureImage
	programs      string         // for measurePrograms
	native        string         // for measurePrograms; empty: programs are not compared with the host's
	arm64         string         // for tryArm64
	old           string         // for measureAgainst
}

func (o *options) choose(only, workload string) (err error) {
	if o.only, err = regexp.Compile(only); err == nil {
		o.workload, err = regexp.Compile(workload)
	}
	return err
}

// measures tells whether a workload is wanted.
func (o *options) measures(workload string) bool { return o.workload.MatchString(workload) }

// rounds is how often each side of a comparison runs.
func (o options) rounds(full int) int {
	if o.quick {
		return 2
	}
	return full
}

// parts are what is measured, in this order.
var parts = []struct {
	name    string
	measure func(context.Context, *bench) error
}{
	{"interpreter", measureInterpreter},
	{"micro", measureMicro},
	{"cold", measureTranslatedCold},
	{"translation", measureTranslation},
	{"programs", measurePrograms},
	{"arm64", tryArm64},
	{"workloads", measureWorkloads},
	{"coldstart", measureColdStart},
	{"boot", measureBoot},
	{"snapshot", measureSnapshot},
	{"commands", measureCommands},
	{"network", measureNetwork},
	{"peers", measurePeers},
	{"reach", measureReach},
	{"fetch", measureFetch},
	{"preview", measurePreview},
	{"daemon", measureDaemon},
	{"protocols", measureProtocols},
	{"idle", measureIdle},
	{"memory", measureMemory},
	{"mounts", measureMounts},
	{"disk", measureDisk},
	{"image", measureImage},
	{"fixed", measureFixed},
	{"against", measureAgainst},
}

func partNames() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// run measures and returns how many bars were missed.
func run(ctx context.Context, o options, out io.Writer) (missed int, err error) {
	b := &bench{options: o, report: report{out: out}}
	if b.kit, err = newKit(ctx); err != nil {
		return 0, err
	}
	defer b.kit.remove()
	b.report.header(b.kit)
	for _, p := range parts {
		if !o.only.MatchString(p.name) {
			continue
		}
		b.calibrate()
		switch err := p.measure(ctx, b); {
		case errors.As(err, new(*missingTool)):
			b.report.leaveOut(p.name, err)
		case err != nil:
			return 0, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	b.calibrate()
	if o.update {
		if err := b.report.updateDocuments(b.kit.root); err != nil {
			return 0, err
		}
	}
	return b.report.finish(), nil
}

// bench is one run of the program.
type bench struct {
	options
	report report
	kit    *kit
}
