package fleet

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"agentvm/internal/api/e2b/wire"
)

// What a pod's labels and annotations say. A Deployment's selector has LabelState, so that a pod that is claimed is its no more, and it makes
// another one.
const (
	prefix = "agentvm.dev/"

	LabelPool   = prefix + "pool"   // the template's name
	LabelState  = prefix + "state"  // StateWarm or StateClaimed
	LabelTenant = prefix + "tenant" // of a claimed pod

	StateWarm    = "warm"
	StateClaimed = "claimed"

	labelSandbox   = "id.agentvm.dev/"  // and the identifier of a sandbox: what a selector finds it by
	annotationList = prefix + "records" // of the pod's sandboxes, in JSON
)

// Record is what a pod, or the Lease of a hibernated sandbox (leases.go), says about a sandbox.
type Record struct {
	Tenant   string            `json:"tenant"`
	Template string            `json:"template"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Started  time.Time         `json:"started"`
	Ends     time.Time         `json:"ends"`
	Pauses   bool              `json:"pauses,omitempty"` // at its end, instead of being removed
	Paused   bool              `json:"paused,omitempty"`
	// Resumed is when the pod was taken for a sandbox that was hibernated. Then it has the sandbox only if its Lease says so, too.
	Resumed time.Time `json:"resumed,omitzero"`
}

// records are those of a pod, by identifier.
type records map[string]Record

// recordsOf reads them. A pod that says nothing has none.
func recordsOf(pod *corev1.Pod) (records, error) {
	list := records{}
	if text := pod.Annotations[annotationList]; text != "" {
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return nil, fmt.Errorf("pod %s: %s: %w", pod.Name, annotationList, err)
		}
	}
	return list, nil
}

func (l records) String() string {
	text, err := json.Marshal(l)
	if err != nil {
		panic(err) // strings and times
	}
	return string(text)
}

// change is a merge patch of a pod that makes its records these, if it is still the version that they come from.
func (l records) change(pod *corev1.Pod, labels map[string]any) []byte {
	if labels == nil {
		labels = map[string]any{}
	}
	for id := range l {
		labels[labelSandbox+id] = ""
	}
	for label := range pod.Labels {
		if id, found := strings.CutPrefix(label, labelSandbox); found {
			if _, stays := l[id]; !stays {
				labels[label] = nil
			}
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": pod.ResourceVersion, "uid": string(pod.UID), "labels": labels, "annotations": map[string]any{annotationList: l.String()},
	}})
	if err != nil {
		panic(err)
	}
	return patch
}

// sandbox is a sandbox and where it is.
type sandbox struct {
	id string
	Record
	pod   *corev1.Pod           // nil: it is hibernated, or being moved
	lease *coordinationv1.Lease // nil: it has not been hibernated
}

func (b *sandbox) detail(g *Gateway, whole bool) wire.Detail {
	d := wire.Detail{
		ID: b.id, Template: b.Template, Alias: b.Template, Client: "agentvm", Started: b.Started.UTC(), Ends: b.Ends.UTC(), State: wire.Running,
		CPUs: 1, MemoryMB: g.config.Memory >> 20, EnvdVersion: wire.EnvdVersion, Metadata: b.Metadata,
	}
	if b.Paused {
		d.State = wire.Paused
	}
	if b.Metadata == nil {
		d.Metadata = map[string]string{}
	}
	if whole {
		d.Domain, d.Token = g.config.Domain, g.token(b.id)
		d.Lifecycle = &wire.Lifecycle{OnTimeout: map[bool]string{false: "kill", true: "pause"}[b.Pauses]}
	}
	return d
}

func (b *sandbox) brief(g *Gateway) wire.Sandbox {
	return wire.Sandbox{ID: b.id, Template: b.Template, Client: "agentvm", EnvdVersion: wire.EnvdVersion, Token: g.token(b.id), Domain: g.config.Domain}
}

// Identifiers of sandboxes have a part by chance and a part that only the gateways can compute. A request with one that they have not made
// costs the cluster nothing.
const (
	idPrefix = "sb"
	idChance = 16 // characters
	idProof  = 8
)

var idEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func (g *Gateway) newID() string {
	chance := strings.ToLower(rand.Text()[:idChance])
	return idPrefix + chance + g.proof(chance)
}

func (g *Gateway) proof(chance string) string {
	m := hmac.New(sha256.New, g.secret)
	m.Write([]byte("id\x00" + chance))
	return idEncoding.EncodeToString(m.Sum(nil))[:idProof]
}

// isID reports whether gateways have made an identifier of a sandbox.
func (g *Gateway) isID(id string) bool { return g.isOurs(idPrefix, id) }

func (g *Gateway) isOurs(prefix, id string) bool {
	rest, found := strings.CutPrefix(id, prefix)
	return found && len(rest) == idChance+idProof && hmac.Equal([]byte(g.proof(rest[:idChance])), []byte(rest[idChance:]))
}

// token is the token of a sandbox's envd.
func (g *Gateway) token(id string) string { return wire.Token(string(g.secret), id) }

func sortedIDs(l records) []string { return slices.Sorted(maps.Keys(l)) }
