package agentvm_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestWorkflowRunsEachStep holds that the jobs of .github/workflows/ci.yml run each step of .ci/run that checks something, and none that it does not have.
func TestWorkflowRunsEachStep(t *testing.T) {
	var workflow struct {
		Jobs map[string]struct {
			Strategy struct {
				Matrix map[string][]string
			}
			Steps []struct{ Run string }
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, ".github/workflows/ci.yml")), &workflow); err != nil {
		t.Fatal(err)
	}
	var run []string
	for _, job := range workflow.Jobs {
		for _, step := range job.Steps {
			command, isOurs := strings.CutPrefix(step.Run, ".ci/run ")
			if !isOurs {
				continue
			}
			for key, values := range job.Strategy.Matrix {
				if name := "${{ matrix." + key + " }}"; strings.Contains(command, name) {
					command = strings.ReplaceAll(command, name, strings.Join(values, " "))
				}
			}
			run = append(run, strings.Fields(command)...)
		}
	}
	out, err := exec.Command(".ci/run", "list").Output()
	if err != nil {
		t.Fatalf(".ci/run list: %v", err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	steps := strings.Fields(first)
	for _, step := range run {
		if !slices.Contains(steps, step) {
			t.Errorf("ci.yml runs the step %s, which .ci/run does not have", step)
		}
	}
	for _, step := range steps {
		if step != "ahead" && !slices.Contains(run, step) { // ahead only warms caches
			t.Errorf("no job of ci.yml runs the step %s", step)
		}
	}
}
