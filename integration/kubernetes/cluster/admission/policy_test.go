// Package admission tests deploy/admission with the code that evaluates it in an API server.
package admission

import (
	"bytes"
	"os"
	"slices"
	"testing"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// policy is a compiled policy.
type policy struct {
	matches, validations cel.ConditionEvaluator
	messages             []string
}

func readPolicy(t *testing.T, path string) policy {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := bytes.Cut(file, []byte("\n---\n"))
	var p admissionregistration.ValidatingAdmissionPolicy
	if err := yaml.UnmarshalStrict(first, &p); err != nil {
		t.Fatal(err)
	}
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	declared := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	for _, v := range p.Spec.Variables {
		if r := compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, declared, environment.StoredExpressions); r.Error != nil {
			t.Fatalf("variable %s: %v", v.Name, r.Error)
		}
	}
	var out policy
	var matches, validations []cel.ExpressionAccessor
	for _, m := range p.Spec.MatchConditions {
		matches = append(matches, &validating.ValidationCondition{Expression: m.Expression})
	}
	for _, v := range p.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression})
		out.messages = append(out.messages, v.Message)
	}
	out.matches = compiler.CompileCondition(matches, declared, environment.StoredExpressions)
	out.validations = compiler.CompileCondition(validations, declared, environment.StoredExpressions)
	return out
}

const gateway = "system:serviceaccount:sandboxes:agentvm-gateway"

// refusals are the messages of a policy to a change, by the name of who makes it; matched says that the policy looks at it. A nil pod is deleted.
func (p policy) refusals(t *testing.T, who string, was, is *core.Pod) (matched bool, messages []string) {
	t.Helper()
	kind, resource := core.SchemeGroupVersion.WithKind("Pod"), core.SchemeGroupVersion.WithResource("pods")
	operation := admission.Update
	var now runtime.Object = is
	if is == nil {
		operation, now = admission.Delete, nil
	}
	attributes := admission.NewAttributesRecord(now, was, kind, "sandboxes", was.Name, resource, "", operation, nil, false, &user.DefaultInfo{Name: who})
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedKind: kind, VersionedOldObject: was, VersionedObject: now}
	request := cel.CreateAdmissionRequest(attributes, meta.GroupVersionResource(resource), meta.GroupVersionKind(kind))
	evaluate := func(c cel.ConditionEvaluator) []cel.EvaluationResult {
		results, _, err := c.ForInput(t.Context(), versioned, request, cel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudget)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Error != nil {
				t.Errorf("%s: %v", r.ExpressionAccessor.GetExpression(), r.Error)
			}
		}
		return results
	}
	for _, r := range evaluate(p.matches) {
		if r.EvalResult == nil || r.EvalResult.Value() != true {
			return false, nil
		}
	}
	for i, r := range evaluate(p.validations) {
		if r.EvalResult == nil || r.EvalResult.Value() != true {
			messages = append(messages, p.messages[i])
		}
	}
	return true, messages
}

func TestGatewayPolicy(t *testing.T) {
	p := readPolicy(t, "../../../../deploy/admission/gateway.yaml")
	sandbox := func(changes ...func(*core.Pod)) *core.Pod {
		pod := &core.Pod{ObjectMeta: meta.ObjectMeta{
			Name: "a", Labels: map[string]string{"app": "agentvm-sandbox", "pool": "x", "agentvm.dev/state": "warm"},
			Annotations: map[string]string{"other": "x"}, OwnerReferences: []meta.OwnerReference{{Kind: "ReplicaSet", Name: "pool"}},
		}, Spec: core.PodSpec{Containers: []core.Container{{Name: "sandbox", Image: "agentvm:1"}}}}
		for _, change := range changes {
			change(pod)
		}
		return pod
	}
	label := func(name, value string) func(*core.Pod) { return func(p *core.Pod) { p.Labels[name] = value } }
	unlabel := func(name string) func(*core.Pod) { return func(p *core.Pod) { delete(p.Labels, name) } }
	note := func(name, value string) func(*core.Pod) { return func(p *core.Pod) { p.Annotations[name] = value } }
	claim := func(p *core.Pod) { p.Labels["agentvm.dev/state"], p.Labels["agentvm.dev/tenant"] = "claimed", "one" }
	bare := &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "bare"}}
	for _, tc := range []struct {
		name    string
		was, is *core.Pod
		refused string // empty: it is allowed
	}{
		{"claim", sandbox(), sandbox(claim, label("id.agentvm.dev/abc", "1"), note("agentvm.dev/claim", "x")), ""},
		{"remove an identifier", sandbox(claim, label("id.agentvm.dev/abc", "1")), sandbox(claim), ""},
		{"delete a sandbox", sandbox(), nil, ""},
		{"delete a claimed one", sandbox(claim), nil, ""},
		{"delete another pod", bare, nil, "a gateway changes and deletes sandboxes only"},
		{"change another pod", bare, &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "bare", Labels: map[string]string{"agentvm.dev/state": "claimed"}}}, "a gateway changes and deletes sandboxes only"},
		{"make another pod a sandbox", bare, sandbox(), "a gateway changes and deletes sandboxes only"},
		{"another image", sandbox(), sandbox(func(p *core.Pod) { p.Spec.Containers[0].Image = "evil" }), "a gateway changes no pod's specification"},
		{"a foreign label", sandbox(), sandbox(label("pool", "y")), "a gateway changes no label of a pod but state, tenant and identifiers"},
		{"a new label", sandbox(), sandbox(label("team", "y")), "a gateway changes no label of a pod but state, tenant and identifiers"},
		{"a label less", sandbox(), sandbox(unlabel("app")), "a gateway changes no label of a pod but state, tenant and identifiers"},
		{"another tenant", sandbox(claim), sandbox(claim, label("agentvm.dev/tenant", "two")), "a claimed pod stays its tenant's"},
		{"for others again", sandbox(claim), sandbox(claim, label("agentvm.dev/state", "warm")), "a claimed pod is not for others again"},
		{"a foreign annotation", sandbox(), sandbox(note("other", "y")), "a gateway changes no annotation of a pod but its own"},
		{"another owner", sandbox(), sandbox(func(p *core.Pod) { p.OwnerReferences[0].Name = "mine" }), "a gateway changes no owner or finalizer of a pod"},
		{"no owner", sandbox(), sandbox(func(p *core.Pod) { p.OwnerReferences = nil }), "a gateway changes no owner or finalizer of a pod"},
		{"a finalizer", sandbox(), sandbox(func(p *core.Pod) { p.Finalizers = []string{"x/y"} }), "a gateway changes no owner or finalizer of a pod"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			matched, refused := p.refusals(t, gateway, tc.was, tc.is)
			if !matched {
				t.Error("the policy does not look at it")
			}
			if tc.refused == "" && len(refused) > 0 || tc.refused != "" && !slices.Contains(refused, tc.refused) {
				t.Errorf("refused with %q, want %q", refused, tc.refused)
			}
			if matched, _ := p.refusals(t, "system:serviceaccount:kube-system:replicaset-controller", tc.was, tc.is); matched {
				t.Error("the policy looks at others' changes")
			}
		})
	}
}
