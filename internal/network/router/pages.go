package router

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"agentvm/egress"
	"agentvm/nat"
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

func (p *statusServer) policy() answer {
	rules, ports := p.router.gate.Policy(), p.router.config.Ports
	listen, connect := ports.Access.Listen, ports.Access.Connect
	shown := map[string]any{
		"mode":                string(rules.Effective()),
		"listen":              statusPorts{spell(listen.Allow), spell(listen.Deny)},   // network.listen
		"connect":             statusPorts{spell(connect.Allow), spell(connect.Deny)}, // network.connect
		"loopbackExemptPorts": ports.Exempted(),                                       // ports that outsiders may reach
	}
	for _, list := range rules.Lists() {
		shown[list.JSON] = spell(*list.Rules)
	}
	text := func(w io.Writer) {
		fmt.Fprintf(w, "mode %s\n", rules.Effective())
		for _, list := range rules.Lists() {
			writeLines(w, list.Name, *list.Rules)
		}
		writeLines(w, "network.listen allow", listen.Allow)
		writeLines(w, "network.listen deny", listen.Deny)
		writeLines(w, "network.connect allow", connect.Allow)
		writeLines(w, "network.connect deny", connect.Deny)
		for _, port := range ports.Exempted() {
			fmt.Fprintf(w, "exempt %d\n", port)
		}
	}
	return answer{text, shown}
}

type statusPorts struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

func writeLines[T fmt.Stringer](w io.Writer, what string, list []T) {
	for _, one := range list {
		fmt.Fprintf(w, "%s %s\n", what, one)
	}
}

// spell returns the elements as text; never nil, which JSON would show as null.
func spell[T fmt.Stringer](list []T) []string {
	texts := make([]string, len(list))
	for i, one := range list {
		texts[i] = one.String()
	}
	return texts
}

func (p *statusServer) denials() answer {
	list := p.router.recorder.list()
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

// statusLimit is one limit of the VM. docs/measurements/specification.md has their names and units.
type statusLimit struct {
	Name    string  `json:"name"`
	Unit    string  `json:"unit"`
	Maximum int64   `json:"maximum"`
	Used    *int64  `json:"used,omitempty"`    // nil where it is not counted
	Refused *uint64 `json:"refused,omitempty"` // how often the limit refused something; nil where that is not counted
}

// dnsRate is how many queries a second the resolver answers, and twice as many at once: the default of dns.Config.
const dnsRate = 100

// natUnits are the units of nat.Limits, by their names.
var natUnits = map[string]string{
	"tcp flows": "connections", "udp flows": "sessions", "pending dials": "connections", "forward flows": "connections",
	"forwards": "listeners", "pending echoes": "requests", "echoes per second": "requests a second", "local connections": "connections",
	nat.MemoryLimit: "bytes",
}

// limitList returns what the VM has and what it can hold. Nothing in it says what the host has in all.
func (p *statusServer) limitList() []statusLimit {
	r, n := p.router, p.router.config.Network
	list := []statusLimit{
		{Name: "memory", Unit: "bytes", Maximum: int64(r.config.Memory)},
		{Name: "processors", Unit: "processors", Maximum: 1},
		{Name: "mounts", Unit: "mounts", Maximum: int64(r.config.MaxMounts), Used: counted(r.config.Mounts)},
		{Name: "packet size", Unit: "bytes", Maximum: int64(r.stack.MTU())},
	}
	if n.SendLimit > 0 {
		list = append(list, statusLimit{Name: "send rate", Unit: "bytes a second", Maximum: n.SendLimit})
	}
	if n.ReceiveLimit > 0 {
		list = append(list, statusLimit{Name: "receive rate", Unit: "bytes a second", Maximum: n.ReceiveLimit})
	}
	for _, use := range r.limitUse() {
		list = append(list, statusLimit{use.Limit, natUnits[use.Limit], int64(use.Maximum), counted(use.Used), &use.Refused})
	}
	limited := r.names.Stats().Limited
	return append(list,
		statusLimit{Name: "dns queries", Unit: "queries a second", Maximum: dnsRate, Refused: &limited},
		statusLimit{Name: "denials kept", Unit: "denials", Maximum: maxDenials, Used: counted(len(r.recorder.list()))},
		statusLimit{Name: "page connections", Unit: "connections", Maximum: maxStatusConns, Used: counted(p.conns.Open())},
	)
}

// limitUse returns the limits of the network, of host memory and of local connections that are counted.
func (r *Router) limitUse() []nat.LimitUse {
	return append(r.flows.LimitUse(), nat.MemoryUse(r.config.HostMemory.Use()), r.config.Connections.Use())
}

func counted(n int) *int64 {
	value := int64(n)
	return &value
}
