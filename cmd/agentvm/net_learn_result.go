package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"agentvm/egress"
	"agentvm/internal/settings"
)

// learnResult is what net learn has found out.
type learnResult struct {
	egress.Learned
	denied denials // although every public address was let through
}

// learnedJSON is what net learn --json prints.
type learnedJSON struct {
	egress.Learned
	Flags  []string `json:"flags"`
	Denied []denial `json:"denied,omitempty"`
}

func (l *learnResult) json() learnedJSON { return learnedJSON{l.Learned, l.flags(), l.denied.list} }

// flags returns the flags that give a VM the policy.
func (l *learnResult) flags() (list []string) {
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

// print writes the policy as agentvm.toml, and everything else in comments.
func (l *learnResult) print(w io.Writer) error {
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
func (l *learnResult) policyText() string {
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

// remarks returns what a reader of the policy has to know about it.
func (l *learnResult) remarks() (list []string) {
	for _, r := range l.Beyond {
		list = append(list, fmt.Sprintf("%s/%s: no rule opens such an address, only --net open does", r.To, r.Protocol))
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
func (l *learnResult) save(path string) error {
	var b bytes.Buffer
	for _, remark := range l.remarks() {
		b.WriteString("# " + remark + "\n")
	}
	for _, port := range l.HostPorts {
		fmt.Fprintf(&b, "# and with --host-port %d\n", port)
	}
	b.WriteString(l.policyText())
	file, err := createHostFile(path)
	if err == nil {
		_, err = file.Write(b.Bytes())
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	return nil
}

// extendProject adds what was learned to agentvm.toml, and says which of the rules there were not needed.
func (c *cli) extendProject(place *projectPlace, l *learnResult) error {
	if len(l.Beyond) > 0 {
		return fmt.Errorf("%s is not written: %s is an address that no rule opens, only --net open does", settings.Name, l.Beyond[0].To)
	}
	before, err := place.read()
	if err != nil {
		return err
	}
	add, unused, err := l.compare(before)
	if err != nil {
		return err
	}
	switch written, err := place.extend(before, add); {
	case err != nil:
		return err
	case !written:
		fmt.Fprintf(c.stderr, "agentvm: %s has it all already\n", before.Path)
	default:
		fmt.Fprintf(c.stderr, "agentvm: %s: %s\n", before.Path, describeAdded(before.Value("network.mode"), add))
	}
	if len(unused) > 0 {
		fmt.Fprintf(c.stderr, "agentvm: rules of it that this did not need: %s\n", strings.Join(unused, ", "))
	}
	return nil
}

// describeAdded says what was added to a file with a mode, or with "".
func describeAdded(mode string, add settings.Network) string {
	var parts []string
	if n := len(add.Allow); n > 0 {
		parts = append(parts, fmt.Sprintf("%d rules added", n))
	}
	if len(add.HostPorts) > 0 {
		parts = append(parts, "host-ports added: "+strings.Join(add.HostPorts, ", "))
	}
	if add.Mode != "" && add.Mode != mode {
		parts = append(parts, fmt.Sprintf("mode is %q now", add.Mode))
	}
	if add.Mode == string(egress.None) {
		parts = append(parts, "because nothing was reached, VMs that are started from there reach nothing")
	}
	return strings.Join(parts, "; ")
}

// compare returns what a project file lacks, and which of its rules no connection needed.
func (l *learnResult) compare(file *settings.File) (add settings.Network, unused []string, err error) {
	there, err := appendRules(nil, file.Path+": network.allow", file.Values["network.allow"])
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
	if len(there) > 0 { // the user has written them
		add.Mode = string(egress.Allowlist)
	}
	if file.Value("network.mode") == "" && len(there)+len(add.Allow) > 0 {
		add.Mode = "" // rules imply it
	}
	for _, port := range l.HostPorts {
		add.HostPorts = append(add.HostPorts, strconv.Itoa(int(port)))
	}
	return add, unused, nil
}
