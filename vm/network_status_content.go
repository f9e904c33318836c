package vm

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"agentvm/egress"
)

// described is a page in the index.
type described struct {
	Path string `json:"path"`
	What string `json:"what"`
}

// index is the list of pages.
func (p *statusServer) index() answer {
	list := []described{
		{"/", "this list"},
		{"/policy", "what this VM may reach, and who may reach it"},
		{"/limits", "what this VM can hold at once, and what of that is used"},
		{"/denials", "what was denied, newest last, and what would allow it"},
	}
	text := func(w io.Writer) {
		fmt.Fprint(w, "This is a virtual machine of agentvm. What it may reach is decided outside of it.\n\n")
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, d := range list {
			fmt.Fprintf(table, "  http://%s%s\t%s\n", egress.GatewayName, d.Path, d.What)
		}
		_ = table.Flush()
		fmt.Fprint(w, "\nEach as JSON with Accept: application/json, with ?format=json, or as /policy.json and so on.\n"+
			"The lines of /denials are in the file /run/agentvm/denials as well.\n")
	}
	return answer{text, map[string]any{"pages": list}}
}

// statusPolicy is the JSON of /policy.
type statusPolicy struct {
	spelledPolicy
	Listen  statusPorts `json:"listen"`              // network.listen
	Connect statusPorts `json:"connect"`             // network.connect
	Exempt  []uint16    `json:"loopbackExemptPorts"` // ports that outsiders may reach
}

type statusPorts struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

func (p *statusServer) policy() answer {
	access := p.network.access
	shown := statusPolicy{
		spellPolicy(p.network.gate.Policy()), spellPorts(access.access.Listen), spellPorts(access.access.Connect), access.exempt(),
	}
	return answer{shown.write, shown}
}

func (s statusPolicy) write(w io.Writer) {
	fmt.Fprintf(w, "mode %s\n", s.Mode)
	lines := func(what string, list []string) {
		for _, one := range list {
			fmt.Fprintf(w, "%s %s\n", what, one)
		}
	}
	lines("allow", s.Allow)
	lines("deny", s.Deny)
	lines("network.listen allow", s.Listen.Allow)
	lines("network.listen deny", s.Listen.Deny)
	lines("network.connect allow", s.Connect.Allow)
	lines("network.connect deny", s.Connect.Deny)
	for _, port := range s.Exempt {
		fmt.Fprintf(w, "exempt %d\n", port)
	}
}

func spellPorts(p PortPolicy) statusPorts {
	texts := func(list []PortRange) []string {
		out := make([]string, len(list))
		for i, r := range list {
			out[i] = r.String()
		}
		return out
	}
	return statusPorts{texts(p.Allow), texts(p.Deny)}
}

// exempt returns the ports that outsiders may reach: those of Access, and those that port forwards name.
func (f *portAccess) exempt() []uint16 {
	f.mu.Lock()
	defer f.mu.Unlock()
	ports := append([]uint16{}, f.access.LoopbackExemptPorts...)
	for port := range f.named {
		ports = append(ports, port)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

func (p *statusServer) denials() answer {
	list := p.network.recorder.list()
	text := func(w io.Writer) {
		if len(list) == 0 {
			fmt.Fprintln(w, "Nothing was denied.")
		}
		for _, e := range list {
			fmt.Fprintln(w, denialLine(e))
		}
	}
	return answer{text, list}
}

// encodeJSON cannot fail: its values consist of texts, numbers and addresses.
func encodeJSON(w io.Writer, value any) {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value)
}

// limits is the list of the VM's limits.
func (p *statusServer) limits() answer {
	list := p.limitList()
	text := func(w io.Writer) {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, strings.Join([]string{"LIMIT", "USED", "MAXIMUM", "UNIT", "REFUSED"}, "\t"))
		for _, l := range list {
			used, refused := "-", "-"
			if l.Used != nil {
				used = fmt.Sprint(*l.Used)
			}
			if l.Refused != nil {
				refused = fmt.Sprint(*l.Refused)
			}
			fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\n", l.Name, used, l.Maximum, l.Unit, refused)
		}
		_ = table.Flush()
	}
	return answer{text, list}
}

// spelledPolicy is a policy in the JSON of /policy.
type spelledPolicy struct {
	Mode  string   `json:"mode"`
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

func spellPolicy(p egress.Policy) spelledPolicy {
	return spelledPolicy{Mode: string(p.Effective()), Allow: spellRules(p.Allow), Deny: spellRules(p.Deny)}
}

func spellRules(rules []egress.Rule) []string {
	texts := make([]string, len(rules))
	for i, rule := range rules {
		texts[i] = rule.String()
	}
	return texts
}
