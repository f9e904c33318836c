package mcp

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"agentvm/client"
	"agentvm/egress"
	"agentvm/internal/settings"
	"agentvm/nat"
)

type netInput struct {
	VM       string   `json:"vm,omitempty" jsonschema:"the VM; default: the server's"`
	Action   string   `json:"action"`
	Host     string   `json:"host,omitempty" jsonschema:"for explain: a name or an address"`
	Port     int      `json:"port,omitempty" jsonschema:"for explain; default 443"`
	Protocol string   `json:"protocol,omitempty" jsonschema:"for explain: tcp or udp; default tcp"`
	Rules    []string `json:"rules,omitempty" jsonschema:"for deny and ask"`
	Mode     string   `json:"mode,omitempty" jsonschema:"for ask: public, every public address; allowlist, what rules allow; none; or open, private networks too"`
	Reason   string   `json:"reason,omitempty" jsonschema:"for ask: what it is needed for, for the user to read"`
}

type netOutput struct {
	VM           string       `json:"vm"`
	Mode         string       `json:"mode,omitempty"`
	Allow        []string     `json:"allow,omitempty" rules:"allow"`
	AllowSNI     []string     `json:"allow_sni,omitempty" rules:"allow-sni" jsonschema:"allowed to connections that name such a server themselves"`
	AllowPrivate []string     `json:"allow_private,omitempty" rules:"allow-private" jsonschema:"private networks that are allowed"`
	Deny         []string     `json:"deny,omitempty" rules:"deny"`
	Decision     *netDecision `json:"decision,omitempty"`
	Denials      []netDenial  `json:"denials,omitempty"`
	Granted      *bool        `json:"granted,omitempty" jsonschema:"of ask: what the user has decided"`
	Cut          int          `json:"connections_cut,omitempty"`
	Warnings     []string     `json:"warnings,omitempty"`
}

type netDecision struct {
	Allowed bool     `json:"allowed"`
	Reason  string   `json:"reason"`
	Message string   `json:"message"`
	Applies []string `json:"applies,omitempty"`
}

type netDenial struct {
	Time    time.Time `json:"time"`
	Target  string    `json:"target"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   uint64    `json:"count,omitempty"`
}

const (
	// maxDenials is how many denials a result has, the newest.
	maxDenials = 40
	// maxRules bounds the rules of one call; maxReason the reason that the user reads, in bytes.
	maxRules, maxReason = 50, 500
	// answer is the name of the question to the user.
	answer = "network"
)

func (s *Server) net(ctx context.Context, req *sdk.CallToolRequest, in netInput) (*sdk.CallToolResult, *netOutput, error) {
	rules, err := parseRules(in.Rules)
	if err != nil {
		return nil, nil, err
	}
	if len(rules) > 0 && in.Action != "deny" && in.Action != "ask" {
		return nil, nil, errors.New("rules are for deny and ask")
	}
	v, name, err := s.open(ctx, req, in.VM)
	if err != nil {
		return nil, nil, err
	}
	defer v.Close()
	out := &netOutput{VM: name}
	switch in.Action {
	case "explain":
		if in.Host == "" || in.Port < 0 || in.Port > 65535 {
			return nil, nil, errors.New("explain: want a host, and a port up to 65535")
		}
		d, err := v.Explain(ctx, in.Host, uint16(cmp.Or(in.Port, 443)), cmp.Or(in.Protocol, egress.TCP))
		if err != nil {
			return nil, nil, err
		}
		out.Decision = &netDecision{d.Allowed, d.Reason, d.Message, d.Applies}
		return nil, out, nil
	case "denials":
		list, err := v.Denials(ctx)
		if err != nil {
			return nil, nil, err
		}
		out.Denials = []netDenial{}
		for _, e := range list[max(0, len(list)-maxDenials):] {
			out.Denials = append(out.Denials, netDenial{e.Time, e.Target(), e.Reason, e.Message, e.Count})
		}
		return nil, out, nil
	case "policy":
		p, err := v.Policy(ctx)
		if err != nil {
			return nil, nil, err
		}
		out.set(p)
		return nil, out, nil
	}
	// The policy is read, changed and set again.
	select {
	case <-s.policy:
		defer func() { s.policy <- struct{}{} }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	now, err := v.Policy(ctx)
	if err != nil {
		return nil, nil, err
	}
	then := now.Clone()
	if in.Action == "deny" {
		if len(rules) == 0 {
			return nil, nil, errors.New("deny: want rules")
		}
		then.Deny = append(then.Deny, rules...)
	} else {
		question, granted, err := s.ask(req, name, in, rules, now, &then)
		if question != nil || err != nil {
			return question, out, err
		}
		if out.Granted = &granted; !granted {
			out.set(now)
			return nil, out, nil
		}
	}
	if out.Cut, err = v.ReplacePolicy(ctx, now.Version(), then); err != nil {
		return nil, nil, err
	}
	out.set(then)
	return nil, out, nil
}

func (o *netOutput) set(p egress.Policy) {
	o.Mode, o.Warnings = string(p.Effective()), p.Warnings()
	for list, texts := range settings.RuleFields(o) {
		*texts = p.Texts()[list]
	}
}

func parseRules(texts []string) (rules []egress.Rule, err error) {
	if len(texts) > maxRules {
		return nil, fmt.Errorf("%d rules: want at most %d in a call", len(texts), maxRules)
	}
	for _, t := range texts {
		r, err := egress.ParseRule(t)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// ask puts into then what is asked for, and returns the question to the user, or the answer if the request brings it. An answer holds for exactly
// the question that was sealed: the VM, its policy as it is now, and the one that was shown.
func (s *Server) ask(req *sdk.CallToolRequest, name string, in netInput, rules []egress.Rule, now egress.Policy, then *egress.Policy) (question *sdk.CallToolResult, granted bool, err error) {
	if in.Mode != "" {
		if then.Mode, err = egress.ParseMode(in.Mode); err != nil {
			return nil, false, err
		}
	}
	if then.Allow = append(then.Allow, rules...); in.Mode == "" && len(rules) == 0 {
		return nil, false, errors.New("ask: want rules or a mode")
	}
	if err := then.Validate(); err != nil {
		return nil, false, err
	}
	if len(in.Reason) > maxReason {
		return nil, false, fmt.Errorf("reason: want at most %d bytes", maxReason)
	}
	seal := hmac.New(sha256.New, s.key[:])
	fmt.Fprintf(seal, "%q %q %q", name, now.String(), then.String())
	state := base64.RawURLEncoding.EncodeToString(seal.Sum(nil))
	if given, answered := req.Params.InputResponses[answer].(*sdk.ElicitResult); answered && hmac.Equal([]byte(state), []byte(req.Params.RequestState)) {
		return nil, given.Action == "accept", nil
	}
	if c := req.Session.InitializeParams(); c == nil || c.Capabilities == nil || c.Capabilities.Elicitation == nil {
		return nil, false, fmt.Errorf("the client cannot ask its user, who alone may let %s reach more: agentvm stop %[1]s, then agentvm start %[1]s with --net or --allow", name)
	}
	message := fmt.Sprintf("May the VM %s reach more in the network?\n\nnow:  %s\nthen: %s", name, now.String(), then.String())
	if in.Reason != "" {
		message += fmt.Sprintf("\n\nThe agent's reason: %q", in.Reason)
	}
	return &sdk.CallToolResult{
		RequestState: state,
		InputRequests: sdk.InputRequestMap{answer: &sdk.ElicitParams{
			Mode: "form", Message: message, RequestedSchema: map[string]any{"type": "object", "properties": map[string]any{}},
		}},
	}, false, nil
}

type portsInput struct {
	VM     string `json:"vm,omitempty" jsonschema:"the VM; default: the server's"`
	Action string `json:"action"`
	Port   int    `json:"port,omitempty" jsonschema:"for forward: where the server in the VM listens"`
}

type portsOutput struct {
	VM       string       `json:"vm"`
	Listens  []portSocket `json:"listens,omitempty"`
	Omitted  int          `json:"omitted,omitempty"`
	Forwards []string     `json:"forwards,omitempty" jsonschema:"addresses of the user's computer that lead into the VM"`
	Address  string       `json:"address,omitempty" jsonschema:"of forward: where the user reaches the server, until the VM ends"`
}

type portSocket struct {
	Protocol string `json:"protocol"`
	Address  string `json:"address"`
	Process  string `json:"process,omitempty"`
	PID      int    `json:"pid,omitempty"`
}

// maxSockets is how many sockets are listed.
const maxSockets = 100

func (s *Server) ports(ctx context.Context, req *sdk.CallToolRequest, in portsInput) (*sdk.CallToolResult, *portsOutput, error) {
	if in.Action == "forward" && (in.Port < 1 || in.Port > 65535) {
		return nil, nil, fmt.Errorf("port %d: want 1 to 65535", in.Port)
	}
	v, name, err := s.open(ctx, req, in.VM)
	if err != nil {
		return nil, nil, err
	}
	defer v.Close()
	out := &portsOutput{VM: name}
	if in.Action == "forward" {
		// The system chooses the port, so that an agent cannot take the place of a server that the user knows by its own.
		at, err := v.Forward(s.ctx, nat.Forward{Listen: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0), GuestPort: uint16(in.Port)})
		if err != nil {
			return nil, nil, err
		}
		out.Address = at.String()
		return nil, out, nil
	}
	list, err := v.Sockets(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, l := range list {
		if !client.Listens(l) {
			continue
		}
		if len(out.Listens) == maxSockets {
			out.Omitted++
			continue
		}
		out.Listens = append(out.Listens, portSocket{l.Network, l.Local.String(), strings.ToValidUTF8(l.Process, "\uFFFD"), l.PID})
	}
	forwards, err := v.Forwards(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range forwards {
		out.Forwards = append(out.Forwards, f.Network()+" "+f.String())
	}
	return nil, out, nil
}
