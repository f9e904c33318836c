package fleet_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"agentvm/cmd/agentvm-gateway/fleet"
)

// TestManifests reads deploy/ as Kubernetes does, and holds what the documents promise of it.
func TestManifests(t *testing.T) {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	kinds := map[string]int{}
	var files []string
	for _, folder := range []string{"base", "overlays/state", "admission"} {
		found, err := filepath.Glob("../../../deploy/" + folder + "/*.yaml")
		if err != nil || len(found) == 0 {
			t.Fatal(found, err)
		}
		files = append(files, found...)
	}
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
		for {
			document, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(file, err)
			}
			object, kind, err := decoder.Decode(document, nil, nil)
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			kinds[kind.Kind]++
			checkObject(t, object)
		}
	}
	for _, kind := range []string{"Namespace", "ServiceAccount", "Role", "RoleBinding", "Deployment", "Service", "NetworkPolicy", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "PodDisruptionBudget", "HorizontalPodAutoscaler"} {
		if kinds[kind] == 0 {
			t.Errorf("deploy/base has no %s", kind)
		}
	}
}

func checkObject(t *testing.T, object runtime.Object) {
	switch o := object.(type) {
	case *corev1.Namespace:
		if o.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
			t.Error("the namespace does not enforce PodSecurity's level restricted")
		}
	case *rbacv1.Role:
		for _, rule := range o.Rules {
			if len(rule.Resources) != 1 || !slices.Contains([]string{"pods", "leases"}, rule.Resources[0]) || slices.Contains(rule.Verbs, "*") {
				t.Errorf("the gateway may do more than its work needs: %v", rule)
			}
			if rule.Resources[0] == "pods" && slices.Contains(rule.Verbs, "create") {
				t.Error("the gateway may make pods")
			}
		}
	case *networkingv1.NetworkPolicy:
		checkNetwork(t, o)
	case *admissionv1.ValidatingAdmissionPolicy:
		rule := o.Spec.MatchConstraints.ResourceRules[0]
		if *o.Spec.FailurePolicy != admissionv1.Fail || !slices.Contains(rule.Operations, admissionv1.Update) || !slices.Contains(rule.Operations, admissionv1.Delete) || !slices.Equal(rule.Resources, []string{"pods"}) {
			t.Errorf("%s does not look at what a gateway does to pods", o.Name)
		}
		all := ""
		for _, v := range o.Spec.Validations {
			all += v.Expression + "\n"
		}
		for _, part := range []string{"object.spec == oldObject.spec", `"` + fleet.LabelTenant + `"`, "ownerReferences", "finalizers", `"agentvm-sandbox"`} {
			if !strings.Contains(all, part) {
				t.Errorf("%s does not hold %s", o.Name, part)
			}
		}
	case *appsv1.Deployment:
		spec := o.Spec.Template.Spec
		s := spec.SecurityContext
		if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: its pods are not restricted", o.Name)
		}
		for _, c := range spec.Containers {
			s := c.SecurityContext
			if s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
				s.Capabilities == nil || !slices.Contains(s.Capabilities.Drop, "ALL") || len(s.Capabilities.Add) > 0 {
				t.Errorf("%s: container %s has more rights than none", o.Name, c.Name)
			}
			if c.ReadinessProbe == nil || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s: container %s has no probe or no limit", o.Name, c.Name)
			}
		}
		if strings.HasPrefix(o.Name, "agentvm-pool") && (spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken) {
			t.Errorf("%s: sandboxes get a token of the cluster", o.Name)
		}
		if strings.HasPrefix(o.Name, "agentvm-pool") && spec.DNSPolicy != corev1.DNSNone {
			t.Errorf("%s: sandboxes ask the cluster's resolver", o.Name)
		}
	}
}

// checkNetwork holds that everything that is reached is named, and that sandboxes reach nothing of the cluster.
func checkNetwork(t *testing.T, o *networkingv1.NetworkPolicy) {
	for i, rule := range o.Spec.Egress {
		if len(rule.To) == 0 {
			t.Errorf("%s: egress rule %d leads everywhere", o.Name, i)
		}
		for _, to := range rule.To {
			block := to.IPBlock
			if block == nil {
				if o.Name == "agentvm-sandbox" {
					t.Errorf("%s: reaches pods of the cluster: %v", o.Name, to)
				}
				continue
			}
			network := netip.MustParsePrefix(block.CIDR)
			if o.Name == "agentvm-gateway" && network.Bits() < 8 {
				t.Errorf("%s: reaches %s", o.Name, network)
			}
			if network.Addr().Is6() {
				t.Errorf("%s: reaches %s, where pods and nodes of any cluster may be", o.Name, network)
			}
			for _, private := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"} {
				if network.Bits() < 8 && !slices.Contains(block.Except, private) {
					t.Errorf("%s: reaches %s", o.Name, private)
				}
			}
		}
	}
}

// TestImagesHaveVersions finds tags that move in all of deploy/.
func TestImagesHaveVersions(t *testing.T) {
	err := filepath.WalkDir("../../../deploy", func(path string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil && regexp.MustCompile(`(image: \S+:|newTag: )(latest|main|master|stable)\b`).Match(text) {
			t.Errorf("%s has an image of a tag that moves", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestManifestsAreAccepted asks Kubernetes' own API server, where there is one, about all of deploy/, with the schemas of agent-sandbox and of the
// Prometheus operator. A field that they do not have is refused.
func TestManifestsAreAccepted(t *testing.T) {
	file := os.Getenv("AGENTVM_TEST_KUBECONFIG")
	if file == "" {
		t.Skip("make test-kubernetes has a cluster")
	}
	kubectl := func(input string, args ...string) (string, error) {
		command := exec.Command("kubectl", append([]string{"--kubeconfig", file}, args...)...)
		command.Stdin = strings.NewReader(input)
		out, err := command.CombinedOutput()
		return string(out), err
	}
	check := []string{"apply", "--server-side", "--dry-run=server", "--validate=strict", "--warnings-as-errors"}
	for _, args := range [][]string{
		{"apply", "--server-side", "-f", "../../../deploy/base/namespace.yaml"},
		{"apply", "--server-side", "-f", filepath.Join(os.Getenv("AGENTVM_TEST_PROGRAMS"), "crds")},
		{"wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"},
		append(check, "-k", "../../../deploy/base"),
		append(check, "-k", "../../../deploy/overlays/monitoring"),
		append(check, "-k", "../../../deploy/overlays/state"),
		append(check, "-f", "../../../deploy/admission"),
		append(check, "-n", "agentvm", "-f", "../../../deploy/agent-sandbox"),
	} {
		if out, err := kubectl("", args...); err != nil {
			t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	for name, right := range map[string]string{"agent-sandbox/template.yaml": "warmPoolRef:", "overlays/monitoring/servicemonitor.yaml": "endpoints:"} {
		text, err := os.ReadFile("../../../deploy/" + name)
		if err != nil {
			t.Fatal(err)
		}
		wrong := strings.Replace(string(text), right, "wrong"+right, 1)
		if out, err := kubectl(wrong, append(check, "-n", "agentvm", "-f", "-")...); err == nil || !strings.Contains(out, "wrong"+strings.TrimSuffix(right, ":")) {
			t.Errorf("%s is accepted with a field that there is not: %v\n%s", name, err, out)
		}
	}
}
