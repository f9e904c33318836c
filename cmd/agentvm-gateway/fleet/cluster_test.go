package fleet_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/yaml"

	"agentvm/client"
	"agentvm/cmd/agentvm-gateway/fleet"
	"agentvm/egress"
	"agentvm/internal/api/e2b"
	"agentvm/internal/api/pod"
	"agentvm/internal/httpserver"
	"agentvm/internal/storage/objectstore"
	"agentvm/internal/storage/snapshot"
	"agentvm/internal/storage/statestore"
)

// cluster is an API server, and pods that processes of the test serve. By default the API server is client-go's fake, to which conditions of
// updates are added here; make test-kubernetes has the same tests with Kubernetes' own.
type cluster struct {
	t         testing.TB
	client    kubernetes.Interface // as a user who may do all
	gateways  kubernetes.Interface // as the gateways' service account
	namespace string
	config    *rest.Config         // of the gateways; nil: the API server is a fake
	tenants   func() fleet.Tenants // nil: red and blue
	state     *fleet.StateConfig   // nil: there is no object store
	move      time.Duration        // fleet.Config.Move
	keep      time.Duration        // fleet.Config.KeepPaused
	public    ed25519.PublicKey
	private   ed25519.PrivateKey
	port      uint16

	mu    sync.Mutex
	count int
	pods  map[string]*servedPod // by name
}

// servedPod is a pod of which everything is real but the VM and the kubelet.
type servedPod struct {
	*pod.Server
	vm     *fakeVM
	cancel context.CancelFunc
	done   chan struct{}
}

// fakeVM is a VM of which only its state is used.
type fakeVM struct {
	e2b.VM
	mu     sync.Mutex
	taken  int // how often it has become a sandbox
	paused bool
	forks  []string
	memory string // what is in it
	note   string // that it was last saved with
}

func (f *fakeVM) Pause(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = true
	return nil
}
func (f *fakeVM) Resume(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = false
	return nil
}
func (f *fakeVM) Close() error                                          { return nil }
func (f *fakeVM) SetPolicy(context.Context, egress.Policy) (int, error) { return 0, nil }
func (f *fakeVM) Fork(_ context.Context, names []string, _ client.ForkOptions) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forks = append(f.forks, names...)
	return nil
}

// HTTPClient reaches a server in the VM, which answers with what it was asked.
func (f *fakeVM) HTTPClient() *http.Client {
	return &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		text := fmt.Sprintf("port %s path %s host %s ticket %q", r.URL.Port(), r.URL.Path, r.Host, r.Header.Get("Agentvm-Ticket"))
		return &http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
	})}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// fakeVMs are those of a pod. What they write to the object store is a real snapshot.
type fakeVMs struct {
	*cluster
	vm *fakeVM
}

func (m fakeVMs) Take(context.Context, []string, egress.Policy) (e2b.VM, error) {
	m.vm.mu.Lock()
	defer m.vm.mu.Unlock()
	m.vm.taken++
	return m.vm, nil
}
func (m fakeVMs) Open(context.Context, string) (e2b.VM, error) { return &fakeVM{}, nil }
func (m fakeVMs) Remove(context.Context, string) error         { return nil }

func (m fakeVMs) store(s pod.State) (*statestore.Store, error) {
	key, err := statestore.ParseKey([]byte(s.Key))
	if err != nil {
		return nil, err
	}
	return statestore.Open(s.URL, statestore.Options{Key: key, Bucket: objectstore.Options{Getenv: func(name string) string { return s.Credentials[name] }}})
}

func (m fakeVMs) Save(ctx context.Context, _ string, to pod.State, note []byte) error {
	store, err := m.store(to)
	if err != nil {
		return err
	}
	m.vm.mu.Lock()
	memory := make([]byte, 1<<20)
	copy(memory, m.vm.memory)
	paused := m.vm.paused
	m.vm.note = string(note)
	m.vm.mu.Unlock()
	if paused == strings.HasPrefix(to.Name, "sn") {
		return errors.New("a sandbox that is hibernated is paused, and one of which a snapshot is made is not")
	}
	dir, err := os.MkdirTemp("", "fleet")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "snapshot")
	err = snapshot.Write(ctx, path, snapshot.Content{
		Meta: snapshot.Meta{LinearMemory: int64(len(memory)), Image: "busybox", RootDisk: "abc"}, Memory: []snapshot.Extent{{Length: int64(len(memory)), Source: bytes.NewReader(memory)}},
	})
	if err != nil {
		return err
	}
	f, err := snapshot.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = store.Push(ctx, to.Name, statestore.Push{File: f, Replace: true, Since: to.Since, Note: note})
	return err
}

func (m fakeVMs) Fetch(ctx context.Context, from pod.State) (pod.Saved, error) {
	store, err := m.store(from)
	if err != nil {
		return nil, err
	}
	manifest, err := store.Read(ctx, from.Name)
	if err != nil {
		return nil, err
	}
	return fakeSaved{m, store, manifest}, nil
}

type fakeSaved struct {
	fakeVMs
	store    *statestore.Store
	manifest *statestore.Manifest
}

func (s fakeSaved) Note() []byte { return s.manifest.Note }

func (s fakeSaved) Restore(ctx context.Context, _ egress.Policy, _ []string) (e2b.VM, error) {
	dir, err := os.MkdirTemp("", "fleet")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	local, err := snapshot.OpenStore(dir)
	if err != nil {
		return nil, err
	}
	place, err := local.NewFork()
	if err != nil {
		return nil, err
	}
	defer place.Close()
	if err := s.store.Pull(ctx, s.manifest, local, place.Path()); err != nil {
		return nil, err
	}
	f, err := snapshot.Open(place.Path())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	memory := make([]byte, f.Meta().LinearMemory)
	for _, r := range f.Memory() {
		if _, err := r.File.ReadAt(memory[r.At:r.At+r.Length], r.Offset); err != nil {
			return nil, err
		}
	}
	s.vm.mu.Lock()
	defer s.vm.mu.Unlock()
	s.vm.taken++
	s.vm.memory = string(bytes.TrimRight(memory, "\x00"))
	return s.vm, nil
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	if runtime.GOOS == "darwin" {
		t.Skip("macOS has one address of the loopback, and pods need one each")
	}
	c := &cluster{t: t, namespace: "agentvm", pods: map[string]*servedPod{}}
	if file := os.Getenv("AGENTVM_TEST_KUBECONFIG"); file != "" {
		c.connect(file)
	} else {
		c.client = newAPI()
		c.gateways = c.client
	}
	var err error
	if c.public, c.private, err = ed25519.GenerateKey(nil); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free at all addresses of the loopback, most likely
	if err != nil {
		t.Fatal(err)
	}
	c.port = uint16(l.Addr().(*net.TCPAddr).Port)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, p := range c.pods {
			p.cancel()
			<-p.done
		}
	})
	return c
}

// newAPI is client-go's fake with the conditions of updates and deletions that it lacks, and watches that heed labels.
func newAPI() *fake.Clientset {
	client := fake.NewClientset()
	var mu sync.Mutex
	version := 1000
	for resource, like := range map[schema.GroupVersionResource]func() kruntime.Object{
		{Version: "v1", Resource: "pods"}:                                 func() kruntime.Object { return &corev1.Pod{} },
		{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}: func() kruntime.Object { return &coordinationv1.Lease{} },
	} {
		const namespace = "agentvm"
		get := func(name string) (kruntime.Object, metav1.Object, error) {
			object, err := client.Tracker().Get(resource, namespace, name)
			if err != nil {
				return nil, nil, err
			}
			object = object.DeepCopyObject()
			access, err := meta.Accessor(object)
			return object, access, err
		}
		changed := func(name string) error {
			return apierrors.NewConflict(resource.GroupResource(), name, fmt.Errorf("it has changed"))
		}
		react := func(verb string, do func(a clienttesting.Action) (kruntime.Object, error)) {
			client.PrependReactor(verb, resource.Resource, func(a clienttesting.Action) (bool, kruntime.Object, error) {
				mu.Lock()
				defer mu.Unlock()
				version++
				object, err := do(a)
				return true, object, err
			})
		}
		react("create", func(a clienttesting.Action) (kruntime.Object, error) {
			object := a.(clienttesting.CreateAction).GetObject().DeepCopyObject()
			access, err := meta.Accessor(object)
			if err != nil {
				return nil, err
			}
			access.SetResourceVersion(strconv.Itoa(version))
			access.SetUID(types.UID("uid-" + access.GetName() + "-" + strconv.Itoa(version)))
			return object, client.Tracker().Create(resource, object, namespace)
		})
		react("update", func(a clienttesting.Action) (kruntime.Object, error) {
			object := a.(clienttesting.UpdateAction).GetObject().DeepCopyObject()
			access, err := meta.Accessor(object)
			if err != nil {
				return nil, err
			}
			_, now, err := get(access.GetName())
			if err != nil {
				return nil, err
			}
			if v := access.GetResourceVersion(); v != "" && v != now.GetResourceVersion() {
				return nil, changed(access.GetName())
			}
			access.SetResourceVersion(strconv.Itoa(version))
			return object, client.Tracker().Update(resource, object, namespace)
		})
		react("patch", func(a clienttesting.Action) (kruntime.Object, error) {
			patch := a.(clienttesting.PatchAction)
			object, now, err := get(patch.GetName())
			if err != nil {
				return nil, err
			}
			var want struct {
				Metadata struct{ ResourceVersion, UID string }
			}
			if err := json.Unmarshal(patch.GetPatch(), &want); err != nil {
				return nil, err
			}
			if v := want.Metadata.ResourceVersion; v != "" && v != now.GetResourceVersion() || want.Metadata.UID != "" && want.Metadata.UID != string(now.GetUID()) {
				return nil, changed(patch.GetName())
			}
			before, err := json.Marshal(object)
			if err != nil {
				return nil, err
			}
			after, err := jsonpatch.MergePatch(before, patch.GetPatch())
			if err != nil {
				return nil, err
			}
			made := like()
			if err := json.Unmarshal(after, made); err != nil {
				return nil, err
			}
			access, err := meta.Accessor(made)
			if err != nil {
				return nil, err
			}
			access.SetResourceVersion(strconv.Itoa(version))
			return made, client.Tracker().Update(resource, made, namespace)
		})
		react("delete", func(a clienttesting.Action) (kruntime.Object, error) {
			d := a.(clienttesting.DeleteActionImpl)
			_, now, err := get(d.Name)
			if err != nil {
				return nil, err
			}
			if only := d.DeleteOptions.Preconditions; only != nil && (only.UID != nil && *only.UID != now.GetUID() || only.ResourceVersion != nil && *only.ResourceVersion != now.GetResourceVersion()) {
				return nil, changed(d.Name)
			}
			return nil, client.Tracker().Delete(resource, namespace, d.Name)
		})
		client.PrependWatchReactor(resource.Resource, func(a clienttesting.Action) (bool, watch.Interface, error) {
			w, err := client.Tracker().Watch(resource, namespace)
			if err != nil {
				return true, nil, err
			}
			selector := a.(clienttesting.WatchActionImpl).WatchRestrictions.Labels
			return true, watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
				access, err := meta.Accessor(e.Object)
				return e, err == nil && (selector == nil || selector.Matches(labels.Set(access.GetLabels())))
			}), nil
		})
	}
	return client
}

// errAnswer is that of a call whose answer was lost.
var errAnswer = errors.New("the connection was closed")

// errKilled is that of calls of a gateway that was killed.
var errKilled = errors.New("the gateway was killed")

// life is how many more calls that change something a gateway makes before it is killed: from then on none of its calls arrive.
type life struct {
	left atomic.Int64
	mute atomic.Bool // the answer to its next creation of something is lost
	deaf atomic.Bool // its watches of Leases that begin now hear nothing
}

// loses says whether an answer is lost.
func (l *life) loses(create bool) bool { return create && l.mute.CompareAndSwap(true, false) }

func (l *life) spend(writes bool) error {
	if l == nil {
		return nil
	}
	if writes && l.left.Add(-1) < 0 || l.left.Load() < 0 {
		return errKilled
	}
	return nil
}

// mortal is a client of the cluster for a gateway that ends after so many changes.
func (c *cluster) mortal(l *life) kubernetes.Interface {
	c.t.Helper()
	if c.config != nil {
		config := rest.CopyConfig(c.config)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				if err := l.spend(r.Method != http.MethodGet); err != nil {
					return nil, err
				}
				response, err := next.RoundTrip(r)
				if err == nil && l.loses(r.Method == http.MethodPost) {
					response.Body.Close()
					return nil, errAnswer
				}
				return response, err
			})
		})
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			c.t.Fatal(err)
		}
		return client
	}
	shared := c.client.(*fake.Clientset)
	client := &fake.Clientset{}
	client.AddReactor("*", "*", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		if err := l.spend(a.GetVerb() != "get" && a.GetVerb() != "list"); err != nil {
			return true, nil, err
		}
		object, err := shared.Invokes(a, nil)
		if err == nil && l.loses(a.GetVerb() == "create") {
			return true, nil, errAnswer
		}
		return true, object, err
	})
	client.AddWatchReactor("leases", func(a clienttesting.Action) (bool, watch.Interface, error) {
		return l.deaf.Load(), watch.NewFake(), nil
	})
	client.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := shared.InvokesWatch(a)
		return true, w, err
	})
	return client
}

// connect uses an API server in a namespace of the test's own. The gateways have the rights there that deploy/base gives them, and no more.
func (c *cluster) connect(file string) {
	c.t.Helper()
	must := func(err error) {
		c.t.Helper()
		if err != nil {
			c.t.Fatal(err)
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	must(err)
	config.QPS, config.Burst = 500, 1000
	c.client, err = kubernetes.NewForConfig(config)
	must(err)
	made, err := c.client.CoreV1().Namespaces().Create(c.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "fleet-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}, metav1.CreateOptions{})
	must(err)
	c.namespace = made.Name
	c.t.Cleanup(func() {
		must(c.client.CoreV1().Namespaces().Delete(context.Background(), c.namespace, metav1.DeleteOptions{}))
	})
	text, err := os.ReadFile("../../../deploy/base/rbac.yaml")
	must(err)
	for _, document := range strings.Split(string(text), "\n---\n") {
		switch {
		case strings.Contains(document, "kind: RoleBinding"):
			var b rbacv1.RoleBinding
			must(yaml.UnmarshalStrict([]byte(document), &b))
			b.Subjects[0].Namespace = c.namespace
			_, err = c.client.RbacV1().RoleBindings(c.namespace).Create(c.t.Context(), &b, metav1.CreateOptions{})
			must(err)
		case strings.Contains(document, "kind: Role\n"):
			var r rbacv1.Role
			must(yaml.UnmarshalStrict([]byte(document), &r))
			_, err = c.client.RbacV1().Roles(c.namespace).Create(c.t.Context(), &r, metav1.CreateOptions{})
			must(err)
		}
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) { // without which no pod is admitted
		if _, err = c.client.CoreV1().ServiceAccounts(c.namespace).Get(c.t.Context(), "default", metav1.GetOptions{}); err == nil {
			break
		}
		if time.Now().After(deadline) {
			c.t.Fatal(err)
		}
	}
	as := rest.CopyConfig(config)
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + c.namespace + ":agentvm-gateway"}
	c.config = as
	c.gateways, err = kubernetes.NewForConfig(as)
	must(err)
}

// warm makes pods that wait. Each has an address of the loopback of its own.
func (c *cluster) warm(n int) {
	c.t.Helper()
	for range n {
		c.mu.Lock()
		c.count++
		number := c.count
		c.mu.Unlock()
		p, err := c.client.CoreV1().Pods(c.namespace).Create(c.t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("warm-%d", number), Namespace: c.namespace,
				Labels: map[string]string{"app": "agentvm-sandbox", fleet.LabelPool: "base", fleet.LabelState: fleet.StateWarm},
			},
			Spec: restricted(),
		}, metav1.CreateOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		c.serve(p, fmt.Sprintf("127.0.%d.%d", 1+number/250, 1+number%250))
	}
}

// restricted is a pod that PodSecurity's level of that name admits, and that no node takes.
func restricted() corev1.PodSpec {
	yes, no := true, false
	return corev1.PodSpec{
		AutomountServiceAccountToken: &no, NodeSelector: map[string]string{"no": "node"},
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Containers: []corev1.Container{{Name: "sandbox", Image: "agentvm", SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		}}},
	}
}

// answerAPI stands for the HTTP API of a pod, which would do anything that reaches it.
func answerAPI(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "the pod's: %s %s %s", r.Method, r.URL.EscapedPath(), r.Header.Get("Upgrade"))
}

// serve does what the kubelet and the container of a pod do.
func (c *cluster) serve(p *corev1.Pod, address string) {
	c.t.Helper()
	v := &fakeVM{}
	server, err := pod.New(pod.Config{VMs: fakeVMs{c, v}, UID: string(p.UID), Gateways: c.public, Domain: "test", Key: "a-key-of-the-pod-itself", API: http.HandlerFunc(answerAPI)})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &servedPod{server, v, cancel, make(chan struct{})}
	listens := make(chan struct{})
	go func() {
		defer close(s.done)
		defer server.Close()
		if err := server.Serve(ctx, net.JoinHostPort(address, strconv.Itoa(int(c.port))), func(string) { close(listens) }); err != nil {
			c.t.Errorf("pod %s: %v", p.Name, err)
		}
	}()
	select {
	case <-listens:
	case <-s.done:
		c.t.FailNow() // it has said why
	}
	c.mu.Lock()
	c.pods[p.Name] = s
	c.mu.Unlock()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error { // with the scheduler
		now, err := c.client.CoreV1().Pods(c.namespace).Get(c.t.Context(), p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Status = corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
		}
		_, err = c.client.CoreV1().Pods(c.namespace).UpdateStatus(c.t.Context(), now, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		c.t.Error(err)
	}
}

// gateway is a gateway of the test.
type gateway struct {
	*fleet.Gateway
	t       testing.TB
	address string
	client  *http.Client
	stop    func()
}

var keys = httpserver.Keys{{Name: "red", Value: "the-key-of-tenant-red"}, {Name: "blue", Value: "the-key-of-tenant-blue"}}

// gateway starts one.
func (c *cluster) gateway(name string) *gateway { return c.gatewayOf(name, c.gateways) }

// gatewayOf starts one with a client of the cluster of its own.
func (c *cluster) gatewayOf(name string, client kubernetes.Interface) *gateway {
	c.t.Helper()
	tenants := c.tenants
	if tenants == nil {
		tenants = func() fleet.Tenants { return fleet.Tenants{Keys: keys} }
	}
	g, err := fleet.New(fleet.Config{
		Client: client, Namespace: c.namespace, Identity: name, Tenants: tenants, Key: c.private, Domain: "test", PodPort: c.port, Wait: 5 * time.Second,
		State: c.state, KeepPaused: c.keep, Sweep: time.Second, Move: c.move,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, 2)
	at := make(chan string, 1)
	go func() {
		if err := g.Run(ctx); err != nil && ctx.Err() == nil {
			c.t.Error(err)
		}
		done <- struct{}{}
	}()
	go func() {
		if err := g.Serve(ctx, "127.0.0.1:0", func(url string) { at <- strings.TrimPrefix(url, "http://") }); err != nil {
			c.t.Error(err)
		}
		done <- struct{}{}
	}()
	address := <-at
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	one := &gateway{Gateway: g, t: c.t, address: address, client: &http.Client{Transport: transport}, stop: sync.OnceFunc(func() {
		transport.CloseIdleConnections()
		cancel()
		<-done
		<-done
	})}
	c.t.Cleanup(one.stop)
	one.eventually("the gateway is ready", func() bool { code, _ := one.do("GET", "/readyz", "", ""); return code == 200 })
	return one
}

// do sends a request as a tenant, "" without a key.
func (g *gateway) do(method, path, tenant, body string, headers ...string) (int, string) {
	g.t.Helper()
	code, text, _ := g.ask(method, path, tenant, body, headers...)
	return code, text
}

// ask is do that also returns the answer's header.
func (g *gateway) ask(method, path, tenant, body string, headers ...string) (int, string, http.Header) {
	g.t.Helper()
	r, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	if tenant != "" {
		r.Header.Set("X-Api-Key", "the-key-of-tenant-"+tenant)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := g.client.Do(r)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error(), nil
	}
	return response.StatusCode, string(text), response.Header
}

// create makes a sandbox and returns its identifier and token.
func (g *gateway) create(tenant, body string) (id, token string) {
	g.t.Helper()
	code, text := g.do("POST", "/v2/sandboxes", tenant, body)
	var made struct{ SandboxID, EnvdAccessToken string }
	if err := json.Unmarshal([]byte(text), &made); code != 201 || err != nil || made.SandboxID == "" || made.EnvdAccessToken == "" {
		g.t.Fatalf("create: %d %s %v", code, text, err)
	}
	return made.SandboxID, made.EnvdAccessToken
}

func (g *gateway) eventually(what string, is func() bool) {
	g.t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			g.t.Fatal("never: " + what)
		}
	}
}
