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

// described is a page as the index names it.
type described struct {
	Path string `json:"path"`
	What string `json:"what"`
}

// index lists the pages.
func (p *page) index() answer {
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

// pagePolicy is what programs get of /policy.
type pagePolicy struct {
	spelledPolicy
	Listen  pagePorts `json:"listen"`              // network.listen
	Connect pagePorts `json:"connect"`             // network.connect
	Exempt  []uint16  `json:"loopbackExemptPorts"` // that outsiders may reach
}

type pagePorts struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

func (p *page) policy() answer {
	access := p.network.access
	shown := pagePolicy{
		spellPolicy(p.network.gate.Policy()), spellPorts(access.access.Listen), spellPorts(access.access.Connect), access.exempt(),
	}
	return answer{shown.write, shown}
}

func (s pagePolicy) write(w io.Writer) {
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

func spellPorts(p PortPolicy) pagePorts {
	texts := func(list []PortRange) []string {
		out := make([]string, len(list))
		for i, r := range list {
			out[i] = r.String()
		}
		return out
	}
	return pagePorts{texts(p.Allow), texts(p.Deny)}
}

// exempt lists the ports that outsiders may reach: those of Access, and those that port forwards name.
func (f *confinement) exempt() []uint16 {
	f.mu.Lock()
	defer f.mu.Unlock()
	ports := append([]uint16{}, f.access.LoopbackExemptPorts...)
	for port := range f.named {
		ports = append(ports, port)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

func (p *page) denials() answer {
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

// encodeJSON cannot fail: its values have nothing but texts, numbers and addresses.
func encodeJSON(w io.Writer, value any) {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(value)
}

// limits lists the VM's limits.
func (p *page) limits() answer {
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
