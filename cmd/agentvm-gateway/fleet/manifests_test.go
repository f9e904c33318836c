package fleet_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// TestManifests reads deploy/ as Kubernetes does, and holds what the documents promise of it.
func TestManifests(t *testing.T) {
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	kinds := map[string]int{}
	files, err := filepath.Glob("../../../deploy/base/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
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
	for _, kind := range []string{"Namespace", "ServiceAccount", "Role", "RoleBinding", "Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget", "HorizontalPodAutoscaler"} {
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
