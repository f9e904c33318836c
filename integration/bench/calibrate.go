//go:build linux

package main

import (
	"os"
	"time"
)

// Calibration says what the computer was like during the run. Both loops are native code and always the same; the second
// is nothing but indirect calls, which some hosts cannot predict part of the time. An interpreter suffers from that, a
// translator does not.
const (
	calibrationSteps = 20_000_000
	calibrations     = 2 // figures
)

func (b *bench) calibrate() {
	for _, loop := range []struct {
		name string
		run  func() uint64
	}{{"straight", straightLoop}, {"indirect", indirectLoop}} {
		c, err := timed(os.Getpid(), func() error { calibrationResult += loop.run(); return nil })
		if err != nil {
			b.report.leaveOut("calibration", err)
			return
		}
		perStep := float64(c.cpu) / float64(time.Nanosecond) / calibrationSteps
		b.report.value("Calibration/"+loop.name, perStep, "ns/step")
		b.report.merge(figure{name: "calibration: native " + loop.name + " loop", unit: "ns a step", spread: samples{perStep}})
	}
}

// merge adds a figure's readings to those that there are under its name.
func (r *report) merge(f figure) {
	for i := range r.figures {
		if have := &r.figures[i]; have.name == f.name {
			have.spread = append(have.spread, f.spread...)
			have.value = have.spread.median()
			return
		}
	}
	f.value = f.spread.median()
	r.add(f)
}

// calibrationResult keeps the loops from being optimised away.
//
//lint:ignore U1000 it is only written
var calibrationResult uint64

func straightLoop() uint64 {
	x := uint64(88172645463325252)
	for range calibrationSteps {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

var calibrationTargets = [8]func(uint64) uint64{
	func(x uint64) uint64 { return x + 1 }, func(x uint64) uint64 { return x ^ 2 },
	func(x uint64) uint64 { return x - 3 }, func(x uint64) uint64 { return x + 4 },
	func(x uint64) uint64 { return x ^ 5 }, func(x uint64) uint64 { return x - 6 },
	func(x uint64) uint64 { return x + 7 }, func(x uint64) uint64 { return x ^ 8 },
}

func indirectLoop() uint64 {
	x := uint64(0)
	for i := range calibrationSteps {
		x = calibrationTargets[i&7](x)
	}
	return x
}
