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

// TestManifestsAreAccepted asks Kubernetes' own API server, where there is one.
func TestManifestsAreAccepted(t *testing.T) {
	file := os.Getenv("AGENTVM_TEST_KUBECONFIG")
	if file == "" {
		t.Skip("make test-kubernetes has a cluster")
	}
	for _, args := range [][]string{
		{"apply", "--server-side", "-f", "../../../deploy/base/namespace.yaml"},
		{"apply", "--server-side", "--dry-run=server", "--warnings-as-errors", "-k", "../../../deploy/base"},
	} {
		if out, err := exec.Command("kubectl", append([]string{"--kubeconfig", file}, args...)...).CombinedOutput(); err != nil {
			t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
