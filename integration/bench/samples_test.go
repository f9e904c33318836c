//go:build linux

package main

import (
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	hundred := make(samples, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, tt := range []struct {
		name string
		give samples
		q    float64
		want float64
	}{
		{"median of three", samples{3, 1, 2}, 0.5, 2},
		{"lower of two", samples{5, 4}, 0.5, 4},
		{"one reading", samples{7}, 0.99, 7},
		{"99 of 100", hundred, 0.99, 99},
		{"highest", hundred, 1, 100},
		{"lowest", hundred, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.give.quantile(tt.q); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	if got := (samples{4, 1, 2, 9}).median(); got != 3 {
		t.Errorf("median of four: got %v, want 3", got)
	}
	if got := (samples{}).median(); !math.IsNaN(got) {
		t.Errorf("no readings: got %v, want NaN", got)
	}
}

func TestOver(t *testing.T) {
	// The second round ran on a computer at half speed: the ratio is the same.
	got := samples{10, 20}.over(samples{5, 10})
	if got[0] != 2 || got[1] != 2 {
		t.Errorf("got %v, want 2 and 2", got)
	}
	if mean := geometricMean([]float64{1, 4}); math.Abs(mean-2) > 1e-9 {
		t.Errorf("mean of 1 and 4: got %v, want 2", mean)
	}
}

// What is slow for the interpreter runs there in the third round only, between the two others: translated, interpreted, QEMU.
func TestSlowIsComparedWithItsNeighbours(t *testing.T) {
	var b bench
	b.reportTranslated(translatedLoad{slow: true}, samples{1, 1, 2, 4}, samples{8}, samples{1, 2, 4, 1})
	interpreted, gain := b.report.figures[1].spread, b.report.figures[2].spread
	if !slices.Equal(gain, samples{4, 2}) || !slices.Equal(interpreted, samples{4, 2}) {
		t.Errorf("gain %v and %v times QEMU's, want 4 and 2 for both", gain, interpreted)
	}
	b.reportTranslated(translatedLoad{slow: true}, samples{1, 2}, samples{8}, samples{1, 2}) // -quick
	if gain := b.report.figures[5].value; gain != 4 {
		t.Errorf("of two rounds: gain %v, want 4", gain)
	}
}

func TestProcessorTime(t *testing.T) {
	used, err := timed(os.Getpid(), func() error {
		for start := time.Now(); time.Since(start) < 30*time.Millisecond; {
		}
		return nil
	})
	if err != nil || used.cpu <= 0 || used.wall < 30*time.Millisecond {
		t.Errorf("got %+v, %v", used, err)
	}
	asleep, err := timed(os.Getpid(), func() error { time.Sleep(100 * time.Millisecond); return nil })
	if err != nil || asleep.cpu > asleep.wall/2 {
		t.Errorf("asleep: got %+v, %v", asleep, err)
	}
}

func TestBar(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bar   bar
		value float64
		want  bool
	}{
		{"at most, below", atMost(7), 6.9, true},
		{"at most, equal", atMost(7), 7, true},
		{"at most, above", atMost(7), 7.1, false},
		{"at least, above", atLeast(250), 251, true},
		{"at least, below", atLeast(250), 249, false},
		{"not a number", atMost(7), math.NaN(), false},
		{"no bar", bar{}, 1e9, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.bar.met(tt.value); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestWithFigures(t *testing.T) {
	const text = "# Title\n<!-- figures: begin (kept) -->\nold\n<!-- figures: end -->\nrest\n"
	got, err := withFigures(text, "new\n")
	if want := "# Title\n<!-- figures: begin (kept) -->\nnew\n<!-- figures: end -->\nrest\n"; err != nil || got != want {
		t.Errorf("got %q, %v", got, err)
	}
	for _, damaged := range []string{"", "<!-- figures: begin -->\n", "<!-- figures: end -->"} {
		if _, err := withFigures(damaged, "new\n"); err == nil {
			t.Errorf("%q: no error", damaged)
		}
	}
}

// TestMissedBarsAreMarked looks at a generated table, and at that of the specification: rounding may hide a bar that is missed by
// little, never one that a reader sees is missed.
func TestMissedBarsAreMarked(t *testing.T) {
	got := table([]figure{
		{name: "kept", value: 1, unit: "s", bar: atMost(2)},
		{name: "missed", value: 3, unit: "s", bar: atMost(2)},
		{name: "too few", value: 1, unit: "times", bar: atLeast(1.6)},
	})
	for _, want := range []string{"| kept | 1.00 |  | s | <= 2 | yes |\n", "| missed | 3.00 |  | s | <= 2 | **no** |\n", "| too few | 1.00 |  | times | >= 1.6 | **no** |\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
	page, err := os.ReadFile("../../docs/measurements/specification.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^\| .* \| ([\d.]+) \| .* \| ([<>])= ([\d.]+) \| (yes|\*\*no\*\*) \|$`).FindAllStringSubmatch(string(page), -1)
	if len(rows) < 10 {
		t.Fatalf("specification.md has %d rows of figures with bars", len(rows))
	}
	for _, row := range rows {
		value, _ := strconv.ParseFloat(row[1], 64)
		limit, _ := strconv.ParseFloat(row[3], 64)
		if missed := (row[2] == "<" && value > limit) || (row[2] == ">" && value < limit); missed && row[4] == "yes" {
			t.Errorf("specification.md does not mark as missed: %s", row[0])
		}
	}
}
