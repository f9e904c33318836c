package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"agentvm/egress"
	"agentvm/project"
)

// lesson is what net learn has learned.
type lesson struct {
	egress.Learned
	denied denials // all the same
}

// learnedJSON is what net learn --json prints.
type learnedJSON struct {
	egress.Learned
	Flags  []string `json:"flags"`
	Denied []denial `json:"denied,omitempty"`
}

func (l *lesson) json() learnedJSON { return learnedJSON{l.Learned, l.flags(), l.denied.list} }

// flags give a machine the policy.
func (l *lesson) flags() (list []string) {
	if len(l.Policy.Allow) == 0 {
		list = append(list, "--net", string(l.Policy.Mode)) // which rules imply
	}
	for _, rule := range l.Policy.Allow {
		list = append(list, "--allow", rule.String())
	}
	for _, port := range l.HostPorts {
		list = append(list, "--host-port", strconv.Itoa(int(port)))
	}
	return list
}

// shellWord quotes what a shell would take for a pattern.
func shellWord(text string) string {
	if strings.ContainsAny(text, "*[") {
		return "'" + text + "'"
	}
	return text
}

// print writes the policy as agentvm.toml, with all else in comments.
func (l *lesson) print(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# The least that lets the same pass, as flags:\n#\n#  ")
	for _, flag := range l.flags() {
		b.WriteString(" " + shellWord(flag))
	}
	b.WriteString("\n#\n")
	for _, remark := range l.remarks() {
		b.WriteString("# " + remark + "\n")
	}
	b.WriteString("[network]\n" + l.policyText())
	if len(l.HostPorts) > 0 {
		b.WriteString("host-ports = " + strings.ReplaceAll(fmt.Sprint(l.HostPorts), " ", ", ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// policyText is the policy as TOML.
func (l *lesson) policyText() string {
	text := fmt.Sprintf("mode = %q\n", l.Policy.Mode)
	if len(l.Policy.Allow) == 0 {
		return text
	}
	text += "allow = [\n"
	for _, rule := range l.Policy.Allow {
		text += fmt.Sprintf("    %q,\n", rule)
	}
	return text + "]\n"
}

// remarks say what is to be known about the policy.
func (l *lesson) remarks() (list []string) {
	for _, r := range l.Beyond {
		list = append(list, fmt.Sprintf("%s/%s is in a private network: no allowlist reaches it, only --net open does", r.To, r.Protocol))
	}
	if l.Missed > 0 {
		list = append(list, fmt.Sprintf("For %d connections or look-ups there is no rule: they were too many, or no rule can name them.", l.Missed))
	}
	if l.Lost > 0 {
		list = append(list, fmt.Sprintf("%d events were lost, so rules may be missing: run it again.", l.Lost))
	}
	if slices.ContainsFunc(l.Policy.Allow, func(r egress.Rule) bool { return isAddress(r.String()) }) {
		list = append(list, "For the addresses no name was looked up; in a project file such rules need --trust-project.")
	}
	if len(l.HostPorts) > 0 {
		list = append(list, "In a project file host-ports need --trust-project.")
	}
	return list
}

// save writes a file for --policy.
func (l *lesson) save(path string) error {
	var b bytes.Buffer
	for _, remark := range l.remarks() {
		b.WriteString("# " + remark + "\n")
	}
	for _, port := range l.HostPorts {
		fmt.Fprintf(&b, "# and with --host-port %d\n", port)
	}
	b.WriteString(l.policyText())
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}

// extendProject adds what was learned to agentvm.toml, and says what it has not needed of what is there.
func (c *cli) extendProject(place *projectPlace, l *lesson) error {
	if len(l.Beyond) > 0 {
		return fmt.Errorf("%s is not written: %s is in a private network, which no allowlist reaches", project.Name, l.Beyond[0].To)
	}
	before, err := place.read()
	if err != nil {
		return err
	}
	path, text := before.Path, before.Text()
	add, unused, err := l.beyond(before)
	if err != nil {
		return err
	}
	after, err := project.Extend(path, text, add)
	switch {
	case err != nil:
		return fmt.Errorf("%s is not written: %w", project.Name, err)
	case bytes.Equal(after, text):
		fmt.Fprintf(c.stderr, "agentvm: %s has it all already\n", path)
	default:
		if err := place.replace(after); err != nil {
			return err
		}
		fmt.Fprintf(c.stderr, "agentvm: %s: %d rules added\n", path, len(add.Allow))
	}
	if len(unused) > 0 {
		fmt.Fprintf(c.stderr, "agentvm: rules of it that this did not need: %s\n", strings.Join(unused, ", "))
	}
	return nil
}

// beyond is what a project file lacks, and which of its rules nothing needed.
func (l *lesson) beyond(file *project.File) (add project.Network, unused []string, err error) {
	there, err := appendRules(nil, file.Path+": network.allow", file.Network.Allow)
	if err != nil {
		return add, nil, err
	}
	used := make([]bool, len(there))
	for _, rule := range l.Policy.Allow {
		covered := false
		for i, other := range there {
			if other.Covers(rule) {
				covered, used[i] = true, true
			} else if rule.Covers(other) {
				used[i] = true
			}
		}
		if !covered {
			add.Allow = append(add.Allow, rule.String())
		}
	}
	for i, rule := range there {
		if !used[i] {
			unused = append(unused, rule.String())
		}
	}
	add.Mode = string(l.Policy.Mode)
	if len(there) > 0 { // they are somebody's
		add.Mode = string(egress.Allowlist)
	}
	if file.Network.Mode == "" && len(there)+len(add.Allow) > 0 {
		add.Mode = "" // rules imply it
	}
	for _, port := range l.HostPorts {
		add.HostPorts = append(add.HostPorts, int(port))
	}
	return add, unused, nil
}
