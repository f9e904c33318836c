package agentvm_test

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestWorkflow compares the jobs of .github/workflows/ci.yml with the steps of .ci/run: each step is in one job, except for `tools`, which all jobs
// begin with, and `ahead`, which is of use only where the steps follow each other.
func TestWorkflow(t *testing.T) {
	text := read(t, ".github/workflows/ci.yml")
	matrix := regexp.MustCompile(`(?m)^ +steps: \[(.*)\]$`).FindStringSubmatch(text)
	if matrix == nil || !strings.Contains(text, ".ci/run tools ${{ matrix.steps }}") {
		t.Fatal("ci.yml has no jobs that run steps")
	}
	jobs := strings.FieldsFunc(matrix[1], func(r rune) bool { return r == ' ' || r == ',' })
	list, err := exec.Command("bash", ".ci/run", "list").Output()
	if err != nil {
		t.Fatalf(".ci/run list: %v", err)
	}
	line, _, _ := strings.Cut(string(list), "\n")
	steps := slices.DeleteFunc(strings.Fields(line), func(step string) bool { return step == "tools" || step == "ahead" })
	slices.Sort(jobs)
	slices.Sort(steps)
	if !slices.Equal(jobs, steps) {
		t.Errorf("the jobs run %q, and .ci/run has %q", jobs, steps)
	}
}
