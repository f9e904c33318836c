package settings

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentvm/egress"
	"agentvm/nat"
	"agentvm/vm"
)

// change is a setting before and after its file was changed.
type change struct {
	key         string
	before, now Grants
}

// beyond says what a setting gives now that it did not before: nothing when it is sure to give the same or less.
type beyond func(change) []string

func (c change) lists() (before, now []string) { return c.before[c.key], c.now[c.key] }

// anyChange is for settings of whose values it is not known which gives more.
func anyChange(c change) []string {
	if before, now := c.lists(); !slices.Equal(before, now) {
		return []string{fmt.Sprintf("%s instead of %s", shown(now), shown(before))}
	}
	return nil
}

func shown(list []string) string {
	if len(list) == 0 {
		return "the default"
	}
	return strings.Join(list, ", ")
}

// added is for lists of which each element gives something.
func added(c change) (list []string) {
	before, now := c.lists()
	for _, one := range now {
		if !slices.Contains(before, one) {
			list = append(list, one+" is new")
		}
	}
	return list
}

// addedPorts is added for forwards, which may be written as ranges.
func addedPorts(c change) (list []string) {
	before, now := c.lists()
	var there []nat.Forward
	for _, text := range before {
		forwards, _ := nat.ParseForwards(text) // what cannot be read gave nothing
		there = append(there, forwards...)
	}
	for _, text := range now {
		forwards, err := nat.ParseForwards(text)
		if err != nil || slices.ContainsFunc(forwards, func(f nat.Forward) bool { return !slices.Contains(there, f) }) {
			list = append(list, text+" is new")
		}
	}
	return list
}

// addedRanges is for ranges of ports that alone are allowed where there is one.
func addedRanges(c change) (list []string) {
	before, now := c.lists()
	switch {
	case len(before) == 0:
		return nil // all were allowed
	case len(now) == 0:
		return []string{"every port instead of " + strings.Join(before, ", ")}
	}
	for _, text := range now {
		if !inRange(before, text) {
			list = append(list, text+" is new")
		}
	}
	return list
}

// removedRanges is for ranges of ports that are denied.
func removedRanges(c change) (list []string) {
	before, now := c.lists()
	for _, text := range before {
		if !inRange(now, text) {
			list = append(list, text+" is no longer denied")
		}
	}
	return list
}

// inRange says whether a range of ports is in one of a list.
func inRange(list []string, text string) bool {
	var r vm.PortRange
	if r.UnmarshalText([]byte(text)) != nil {
		return false
	}
	return slices.ContainsFunc(list, func(text string) bool {
		var around vm.PortRange
		return around.UnmarshalText([]byte(text)) == nil && around.First <= r.First && r.Last <= around.Last
	})
}

// larger is for amounts; one that a file does not name is as standard says.
func larger(standard string, amount func(text string) (float64, error)) beyond {
	return func(c change) []string {
		before, now := c.lists()
		was, is := standard, standard
		if len(before) > 0 {
			was = before[0]
		}
		if len(now) > 0 {
			is = now[0]
		}
		a, err := amount(was)
		b, err2 := amount(is)
		if err == nil && err2 == nil && b <= a || was == is {
			return nil
		}
		return []string{fmt.Sprintf("%s instead of %s", is, was)}
	}
}

func bytesOf(text string) (float64, error) {
	n, err := ParseSize(text, 20)
	return float64(n), err
}

// largerNumber is larger for a Number, of which 0 means the default.
func largerNumber(standard int) beyond {
	return larger(strconv.Itoa(standard), func(text string) (float64, error) {
		n, err := strconv.Atoi(text)
		return float64(cmp.Or(n, standard)), err
	})
}

// noLimit is the time-out of a file that names none.
const noLimit = "no limit"

// timeOf is a time-out in seconds.
func timeOf(text string) (float64, error) {
	if text == noLimit {
		return math.Inf(1), nil
	}
	d, err := time.ParseDuration(text)
	if err == nil && d == 0 {
		return math.Inf(1), nil
	}
	return d.Seconds(), err
}

// switchedOff is for switches that take something from the VM.
func switchedOff(c change) []string {
	on := func(list []string) bool { return len(list) > 0 && list[0] == "true" }
	if before, now := c.lists(); on(before) && !on(now) {
		return []string{"no longer true"}
	}
	return nil
}

// widerPolicy is for the mode with the rules: what one of them means depends on the others.
func widerPolicy(c change) []string {
	before, err := policy(c.before)
	now, err2 := policy(c.now)
	if err == nil {
		err = err2
	}
	if err == nil {
		err = now.Within(before)
	}
	if err == nil {
		return nil
	}
	return []string{err.Error()}
}

// policy is the network policy of a file.
func policy(g Grants) (p egress.Policy, err error) {
	if list := g["network.mode"]; len(list) > 0 {
		p.Mode = egress.Mode(list[0])
	}
	texts := make(map[string][]string)
	for _, list := range p.Lists() {
		texts[list.Name] = g["network."+list.Name]
	}
	err = p.Add(texts)
	if rule, is := errors.AsType[*egress.ListError](err); is {
		err = fmt.Errorf("network.%s: %w", rule.List, err)
	}
	return p, err
}

// withMode is for the rules, which are compared with the mode.
func withMode(change) []string { return nil }
