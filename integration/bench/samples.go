//go:build linux

package main

import (
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// samples are readings of one quantity.
type samples []float64

// quantile is the smallest reading that is not below the share q of all readings.
func (s samples) quantile(q float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[max(0, min(len(s)-1, int(math.Ceil(q*float64(len(s))))-1))]
}

// median is the reading in the middle, or the mean of the two there.
func (s samples) median() float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	return (sorted[(len(s)-1)/2] + sorted[len(s)/2]) / 2
}

// over divides reading by reading: neighbours in time saw the same computer.
func (s samples) over(other samples) samples {
	ratios := make(samples, min(len(s), len(other)))
	for i := range ratios {
		ratios[i] = s[i] / other[i]
	}
	return ratios
}

// less is by how much each reading is above another one.
func (s samples) less(other samples) samples {
	differences := make(samples, len(s))
	for i := range s {
		differences[i] = s[i] - other[i]
	}
	return differences
}

// times multiplies each reading, to change its unit.
func (s samples) times(factor float64) samples {
	scaled := make(samples, len(s))
	for i := range s {
		scaled[i] = s[i] * factor
	}
	return scaled
}

// repeat has each reading n times.
func (s samples) repeat(n int) (all samples) {
	for _, reading := range s {
		for range n {
			all = append(all, reading)
		}
	}
	return all
}

func geometricMean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += math.Log(v)
	}
	return math.Exp(sum / float64(len(values)))
}

// cost is what one run of something took.
type cost struct {
	wall, cpu time.Duration
}

// costs are the runs of one side of a comparison, in seconds.
type costs struct {
	wall, cpu samples
}

func (c *costs) add(one cost) {
	c.wall = append(c.wall, one.wall.Seconds())
	c.cpu = append(c.cpu, one.cpu.Seconds())
}

// processorTime is what a process of ours has used, by all its threads, to the nanosecond. The clock's number is made as
// clock_getcpuclockid(3) makes it.
func processorTime(pid int) (time.Duration, error) {
	const whole = 2 // the scheduler's account of the process
	var t unix.Timespec
	err := unix.ClockGettime(int32(^pid)<<3|whole, &t)
	return time.Duration(t.Nano()), err
}

// timed runs do and returns what it took, the processor time being that of process pid.
func timed(pid int, do func() error) (cost, error) {
	before, err := processorTime(pid)
	if err != nil {
		return cost{}, err
	}
	start := time.Now()
	if err := do(); err != nil {
		return cost{}, err
	}
	wall := time.Since(start)
	after, err := processorTime(pid)
	return cost{wall, after - before}, err
}
