package vm_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"agentvm/vm"
)

// TestRecorder: a recording has the commands with their output and ends, changes of files, and verdicts; no secret, though a program prints
// it; and nothing of a fork.
func TestRecorder(t *testing.T) {
	var out bytes.Buffer // the Recorder writes one line after the other
	secret := secretValue()
	v := ownVM(t, func(c *vm.Config) {
		c.Recorder = vm.NewRecorder(&out, 0)
		c.Secrets = []vm.Secret{{Name: "KEY", Value: secret, Hosts: []string{"api.example.com"}}}
		c.Env = append(c.Env, "HALF="+secret[:9], "REST="+secret[9:])
	})
	mustRun(t, v, vm.Command{Line: `printf x$HALF; sleep 0.1; printf $REST; echo err >&2; exit 3`})
	mustRun(t, v, vm.Command{Args: []string{"no-such-program", secret}})
	var passed bytes.Buffer
	mustRun(t, v, vm.Command{Line: "echo term", Terminal: &vm.Size{Columns: 91, Rows: 31}, Stdout: &passed})
	if err := v.WriteFile(limited(t), "/tmp/written", []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	must(v.ReadFile(limited(t), "/tmp/written"))
	mustRun(t, v, vm.Command{Line: "nc -w 1 10.0.0.1 80 </dev/null"})
	mustRun(t, fork(t, v, 1, vm.ForkOptions{})[0], vm.Command{Line: "echo of the fork"})
	p := must(v.Start(limited(t), vm.Command{Line: "sleep 1000"}))
	v.Close()
	<-p.Done()
	if strings.Contains(out.String(), secret) || strings.Contains(out.String(), "of the fork") || strings.Contains(out.String(), "content") {
		t.Errorf("what a recording must not have: %s", out.String())
	}
	type event struct {
		Event, Line, Text, Operation, Path, Error string
		Args                                      []string
		ID                                        uint64
		Stream, Code, Columns                     int
		Network                                   struct{ Verdict, Destination string }
	}
	var list []event
	for line := range strings.Lines(out.String()) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	texts := make(map[int]string)
	for _, e := range list {
		if e.ID == 1 {
			texts[e.Stream] += e.Text
		}
	}
	if texts[1] != "xagentvm-secret-KEY" || texts[2] != "err\n" {
		t.Errorf("the first command's output: %v", texts)
	}
	for what, is := range map[string]func(event) bool{
		"the end of the first":  func(e event) bool { return e.Event == "end" && e.ID == 1 && e.Code == 3 },
		"the second":            func(e event) bool { return slices.Equal(e.Args, []string{"no-such-program", "agentvm-secret-KEY"}) },
		"its end":               func(e event) bool { return e.Event == "end" && e.ID == 2 && e.Code == 127 },
		"the terminal":          func(e event) bool { return e.Event == "exec" && e.ID == 3 && e.Columns == 91 },
		"its output":            func(e event) bool { return e.ID == 3 && e.Text == "term\r\n" },
		"the file":              func(e event) bool { return e.Operation == "write" && e.Path == "/tmp/written" && e.Error == "" },
		"the verdict":           func(e event) bool { return e.Network.Verdict == "deny" && e.Network.Destination == "10.0.0.1:80" },
		"the end with the VM's": func(e event) bool { return e.Event == "end" && e.Error != "" },
	} {
		if !slices.ContainsFunc(list, is) {
			t.Errorf("%s is missing in %s", what, out.String())
		}
	}
	if slices.ContainsFunc(list, func(e event) bool { return e.Operation == "read" }) || passed.String() != "term\r\n" {
		t.Errorf("%q passed on; %s", passed.String(), out.String())
	}
}
