package fleet_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// These have a node too: kubelet, containerd and runc run deploy/base, gateways and VMs included. What ends in the middle is killed.

// node is that cluster.
type node struct {
	t      *testing.T
	dir    string
	client *http.Client
}

const (
	tenantKey = "the-key-of-tenant-red"
	sdkKey    = "e2b_0123456789abcdef0123456789" // of the form that E2B's own have
)

// newNode applies deploy/base once for all tests of the program.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: os.Getenv("AGENTVM_TEST_CLUSTER"), client: &http.Client{Timeout: time.Minute}}
	if n.dir == "" {
		t.Skip("make test-kubernetes has a cluster")
	}
	if _, err := n.kubectl("get", "namespace", "agentvm"); err == nil {
		if out, err := n.kubectl("-n", "agentvm", "get", "configmap", "agentvm"); err == nil && out != "" {
			return n
		}
	} else {
		n.must("create", "-f", "../../../deploy/base/namespace.yaml")
	}
	private, public := filepath.Join(t.TempDir(), "gateway.pem"), filepath.Join(t.TempDir(), "gateway.pub")
	for _, args := range [][]string{{"genpkey", "-algorithm", "ed25519", "-out", private}, {"pkey", "-in", private, "-pubout", "-out", public}} {
		if out, err := exec.Command("openssl", args...).CombinedOutput(); err != nil {
			t.Fatalf("openssl: %v %s", err, out)
		}
	}
	n.must("-n", "agentvm", "create", "secret", "generic", "agentvm-gateway-key", "--from-file="+private)
	n.must("-n", "agentvm", "create", "secret", "generic", "agentvm-tenants", "--from-literal=tenants=red "+tenantKey+"\nblue the-key-of-tenant-blue\ne2b "+sdkKey)
	store := newS3(t)
	go func() { // for as long as the program runs, as the cluster does
		_ = http.Serve(n.listen(storePort), store)
	}()
	objectStore.Store(store)
	n.must("-n", "agentvm", "create", "secret", "generic", "agentvm-state", "--from-literal=AGENTVM_STATE=s3://bucket/state?endpoint=http://172.30.0.1:"+storePort,
		"--from-literal=AWS_ACCESS_KEY_ID=id", "--from-literal=AWS_SECRET_ACCESS_KEY=secret")
	n.must("-n", "agentvm", "create", "configmap", "agentvm", "--from-literal=domain=sandboxes.test", "--from-file="+public)
	n.must("apply", "--server-side", "--force-conflicts", "-k", "../../../integration/kubernetes/overlay")
	n.must("-n", "agentvm", "rollout", "status", "deployment/agentvm-gateway", "--timeout=3m")
	return n
}

// objectStore is that of the cluster, at a port of the node's address that pods reach.
var objectStore atomic.Pointer[s3]

const storePort = "9333"

func (n *node) listen(port string) net.Listener {
	n.t.Helper()
	l, err := net.Listen("tcp", "0.0.0.0:"+port)
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

func (n *node) kubectl(args ...string) (string, error) {
	out, err := exec.Command("kubectl", append([]string{"--kubeconfig", os.Getenv("AGENTVM_TEST_KUBECONFIG")}, args...)...).CombinedOutput()
	return string(out), err
}

func (n *node) must(args ...string) string {
	n.t.Helper()
	out, err := n.kubectl(args...)
	if err != nil {
		n.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (n *node) eventually(what string, within time.Duration, is func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(within); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			out, _ := n.kubectl("-n", "agentvm", "get", "pods", "-o", "wide")
			n.t.Fatalf("never: %s\n%s", what, out)
		}
	}
}

// scale has the pool have so many pods that wait.
func (n *node) scale(warm int) {
	n.t.Helper()
	n.must("-n", "agentvm", "delete", "hpa", "--all") // it wants four pods at least, and has no metrics here
	n.must("-n", "agentvm", "scale", "deployment/agentvm-pool-base", "--replicas="+strconv.Itoa(warm))
	n.eventually(fmt.Sprint(warm, " pods wait"), 10*time.Minute, func() bool {
		out, err := n.kubectl("-n", "agentvm", "get", "deployment", "agentvm-pool-base", "-o", "jsonpath={.status.readyReplicas}")
		return err == nil && out == strconv.Itoa(warm)
	})
}

// gateways are the addresses of those that are ready.
func (n *node) gateways() (list []string) {
	out, err := n.kubectl("-n", "agentvm", "get", "pods", "-l", "app=agentvm-gateway", "-o", "jsonpath={.items[*].status.podIP}")
	if err != nil {
		return nil
	}
	for _, ip := range strings.Fields(out) {
		url := "http://" + ip + ":8480"
		if r, err := n.client.Get(url + "/readyz"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				list = append(list, url)
			}
		}
	}
	return list
}

func (n *node) do(method, url, tenant, body string) (int, string) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", "the-key-of-tenant-"+tenant)
	r.Header.Set("Content-Type", "application/json")
	response, err := n.client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(text)
}

// create makes a sandbox and has it execute a command.
func (n *node) create(gateway string) (id string, err error) {
	code, text := n.do("POST", gateway+"/v2/sandboxes", "red", `{"templateID":"base","timeout":3600,"envVars":{"A":"b"}}`)
	if code != http.StatusCreated {
		return "", fmt.Errorf("create: %d %s", code, text)
	}
	id = between(text, `"sandboxID":"`, `"`)
	return id, n.exec(gateway, id, "echo $((6*7))", "42")
}

func (n *node) exec(gateway, id, command, want string) error {
	body, err := json.Marshal(map[string]any{"command": command})
	if err != nil {
		return err
	}
	if code, text := n.do("POST", gateway+"/v1/vms/"+id+"/exec", "red", string(body)); code != http.StatusOK || !strings.Contains(text, want) {
		return fmt.Errorf("exec in %s: %d %s", id, code, text)
	}
	return nil
}

// kill ends processes of a name without a goodbye, and says how many.
func kill(name string, only func(pid int) bool) int { return signal(name, syscall.SIGKILL, only) }

// signal sends processes of a name a signal, and says how many.
func signal(name string, what syscall.Signal, only func(pid int) bool) (reached int) {
	files, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range files {
		text, err := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || len(name) > 15 && strings.TrimSpace(string(text)) != name[:15] || len(name) <= 15 && strings.TrimSpace(string(text)) != name || !only(pid) {
			continue
		}
		if syscall.Kill(pid, what) == nil {
			reached++
		}
	}
	return reached
}

// TestNode makes a sandbox in a pod of the cluster by one gateway, uses it by the other one, and kills the first in the middle.
func TestNode(t *testing.T) {
	n := newNode(t)
	n.scale(3)
	n.eventually("two gateways", time.Minute, func() bool { return len(n.gateways()) == 2 })
	g := n.gateways()
	id, err := n.create(g[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := n.exec(g[1], id, "echo kept > /tmp/file; uname -m", "riscv64"); err != nil {
		t.Fatal(err)
	}
	first := true
	if kill("agentvm-gateway", func(int) bool { was := first; first = false; return was }) != 1 {
		t.Fatal("no gateway was killed")
	}
	n.eventually("a gateway serves it", time.Minute, func() bool {
		left := n.gateways()
		return len(left) > 0 && n.exec(left[0], id, "cat /tmp/file", "kept") == nil
	})
	n.eventually("two gateways again", 2*time.Minute, func() bool { return len(n.gateways()) == 2 })
	if code, text := n.do("GET", n.gateways()[0]+"/sandboxes/"+id, "blue", ""); code != http.StatusNotFound {
		t.Errorf("another tenant has it: %d %s", code, text)
	}
	if code, text := n.do("DELETE", n.gateways()[0]+"/sandboxes/"+id, "red", ""); code != http.StatusNoContent {
		t.Errorf("%d %s", code, text)
	}
	n.eventually("its pod is gone", time.Minute, func() bool {
		out, err := n.kubectl("-n", "agentvm", "get", "pods", "-l", "id.agentvm.dev/"+id, "-o", "name")
		return err == nil && strings.TrimSpace(out) == ""
	})
}

// hibernate has a sandbox leave its pod, and resume come back. They try again until a gateway says that it was done.
func (n *node) hibernate(id string) {
	n.t.Helper()
	n.eventually(id+" is paused", 2*time.Minute, func() bool {
		g := n.gateways()
		if len(g) == 0 {
			return false
		}
		code, _ := n.do("POST", g[rand.IntN(len(g))]+"/sandboxes/"+id+"/pause", "red", "")
		return code == http.StatusNoContent || code == http.StatusConflict
	})
}

func (n *node) resume(id string) {
	n.t.Helper()
	n.eventually(id+" is resumed", 2*time.Minute, func() bool {
		g := n.gateways()
		if len(g) == 0 {
			return false
		}
		code, _ := n.do("POST", g[rand.IntN(len(g))]+"/sandboxes/"+id+"/connect", "red", `{"timeout":3600}`)
		return code == http.StatusCreated || code == http.StatusOK
	})
}

// TestNodeHibernate has a sandbox with a program leave its pod for the object store, and continue in another one, and measures that: when the pod
// that replaces the claimed one starts later, as it does on another computer of a cluster, and when it starts on these processors meanwhile.
func TestNodeHibernate(t *testing.T) {
	n := newNode(t)
	n.scale(3)
	n.eventually("two gateways", time.Minute, func() bool { return len(n.gateways()) == 2 })
	g := n.gateways()
	id, err := n.create(g[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := n.exec(g[0], id, "echo kept >/tmp/file; (while :; do date +%s >/tmp/next; mv /tmp/next /tmp/now; sleep 0.1; done) >/dev/null 2>&1 & echo begun", "begun"); err != nil {
		t.Fatal(err)
	}
	pod := func() string {
		out, err := n.kubectl("-n", "agentvm", "get", "pods", "-l", "id.agentvm.dev/"+id, "-o", "name")
		if err != nil {
			t.Fatal(out)
		}
		return strings.TrimSpace(out)
	}
	const rounds = 10
	var pauses []time.Duration
	resumes := map[bool][]time.Duration{}
	for round := range 2 * rounds {
		replaced := round >= rounds
		was := pod()
		began := time.Now()
		if code, text := n.do("POST", g[round%2]+"/sandboxes/"+id+"/pause", "red", ""); code != http.StatusNoContent {
			t.Fatalf("pause: %d %s", code, text)
		}
		pauses = append(pauses, time.Since(began))
		n.eventually("its pod is gone", time.Minute, func() bool { return pod() == "" })
		n.eventually("pods wait", time.Minute, func() bool {
			out, err := n.kubectl("-n", "agentvm", "get", "deployment", "agentvm-pool-base", "-o", "jsonpath={.status.readyReplicas}")
			return err == nil && out == "3"
		})
		time.Sleep(2 * time.Second) // for the kubelet's work after a pod's start
		release := n.hold(!replaced)
		began = time.Now()
		if code, text := n.do("POST", g[(round+1)%2]+"/v2/sandboxes/"+id+"/connect", "red", `{"timeout":3600}`); code != http.StatusCreated {
			t.Fatalf("connect: %d %s", code, text)
		}
		if err := n.exec(g[(round+1)%2], id, "cat /tmp/file", "kept"); err != nil {
			t.Fatal(err)
		}
		resumes[replaced] = append(resumes[replaced], time.Since(began))
		release()
		if now := pod(); now == was || now == "" {
			t.Errorf("it is in %q, and was in %q", now, was)
		}
	}
	if err := n.exec(g[0], id, "was=$(cat /tmp/now); sleep 2; test $(cat /tmp/now) -gt $was && echo it runs on", "it runs on"); err != nil {
		t.Error(err)
	}
	if code, text := n.do("POST", g[0]+"/sandboxes/"+id+"/connect", "blue", ""); code != http.StatusNotFound {
		t.Errorf("another tenant: %d %s", code, text)
	}
	if code, text := n.do("DELETE", g[0]+"/sandboxes/"+id, "red", ""); code != http.StatusNoContent {
		t.Errorf("%d %s", code, text)
	}
	figures := func(took []time.Duration) string {
		slices.Sort(took)
		return fmt.Sprintf("p50 %v, most %v", took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	}
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("pause: %s; resume to a command's result: %s, with a pod that starts meanwhile %s; load %s", figures(pauses), figures(resumes[false]), figures(resumes[true]),
		strings.TrimSpace(string(load)))
}

// place is the pod of a sandbox and the computer that has it, both empty when there is none.
func (n *node) place(id string) (pod, on string) {
	n.t.Helper()
	out := n.must("-n", "agentvm", "get", "pods", "-l", "id.agentvm.dev/"+id, "-o", "jsonpath={.items[*].metadata.name} {.items[*].spec.nodeName}")
	pod, on, _ = strings.Cut(strings.TrimSpace(out), " ")
	return pod, on
}

// pods are the names of pods on a computer.
func (n *node) pods(on, labels string) []string {
	n.t.Helper()
	return strings.Fields(n.must("-n", "agentvm", "get", "pods", "-l", labels, "--field-selector", "spec.nodeName="+on, "-o", "jsonpath={.items[*].metadata.name}"))
}

// TestNodes has a sandbox leave a computer that is drained, which waits for it, and continue on another one. Then that one is cut off for a while.
func TestNodes(t *testing.T) {
	n := newNode(t)
	if out := n.must("get", "nodes", "-o", "name"); !strings.Contains(out, "node2") {
		t.Skip("the cluster has one node")
	}
	t.Cleanup(func() {
		_, _ = n.kubectl("uncordon", "node1", "node2")
		_ = exec.Command("ip", "link", "set", "to-node2", "up").Run()
	})
	n.scale(4)
	n.eventually("two gateways", time.Minute, func() bool { return len(n.gateways()) == 2 })
	id := ""
	for range 8 { // a claim takes a pod of either
		one, err := n.create(n.gateways()[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, on := n.place(one); on == "node1" {
			id = one
			break
		}
		n.do("DELETE", n.gateways()[0]+"/sandboxes/"+one, "red", "")
		n.eventually("pods wait on node1", 2*time.Minute, func() bool {
			return len(n.pods("node1", "agentvm.dev/state=warm")) > 0
		})
	}
	if id == "" {
		t.Fatal("no sandbox is on node1")
	}
	if err := n.exec(n.gateways()[0], id, "echo kept >/tmp/file; (while :; do date +%s >/tmp/next; mv /tmp/next /tmp/now; sleep 0.1; done) >/dev/null 2>&1 & echo begun", "begun"); err != nil {
		t.Fatal(err)
	}
	drain := []string{"drain", "node1", "--force", "--delete-emptydir-data"}
	if out, err := n.kubectl(append(drain, "--timeout=20s")...); err == nil || !strings.Contains(out, "disruption budget") {
		t.Errorf("a drain does not wait for a sandbox: %v\n%s", err, out)
	}
	n.eventually("a gateway", time.Minute, func() bool { return len(n.gateways()) > 0 })
	if err := n.exec(n.gateways()[0], id, "cat /tmp/file", "kept"); err != nil {
		t.Errorf("after a drain that has waited: %v", err)
	}
	n.hibernate(id)
	n.must(append(drain, "--timeout=3m")...)
	n.eventually("gateways and pods that wait on node2", 3*time.Minute, func() bool {
		return len(n.gateways()) == 2 && len(n.pods("node2", "agentvm.dev/state=warm")) > 0
	})
	began := time.Now()
	n.resume(id)
	if err := n.exec(n.gateways()[0], id, "cat /tmp/file; was=$(cat /tmp/now); sleep 1; test $(cat /tmp/now) -gt $was && echo it runs on", "it runs on"); err != nil {
		t.Error(err)
	}
	t.Logf("on the other node after %v, one second of it asleep", time.Since(began).Round(time.Millisecond))
	if _, on := n.place(id); on != "node2" {
		t.Fatalf("it is on %q", on)
	}

	// All but the sandbox is on the first one now, which loses the second.
	n.must("uncordon", "node1")
	n.must("cordon", "node2")
	n.must("-n", "agentvm", "rollout", "restart", "deployment/agentvm-gateway")
	n.must("-n", "agentvm", "rollout", "status", "deployment/agentvm-gateway", "--timeout=3m")
	for _, pod := range n.pods("node2", "agentvm.dev/state=warm") {
		n.must("-n", "agentvm", "delete", "pod", "--wait=false", pod)
	}
	n.eventually("two gateways and pods that wait on node1", 3*time.Minute, func() bool {
		return len(n.gateways()) == 2 && len(n.pods("node1", "app=agentvm-gateway")) == 2 && len(n.pods("node2", "agentvm.dev/state=warm")) == 0 &&
			len(n.pods("node1", "agentvm.dev/state=warm")) == 4
	})
	n.scale(4) // until they are ready
	if out, err := exec.Command("ip", "link", "set", "to-node2", "down").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	g := n.gateways()
	began = time.Now()
	if code, text := n.do("POST", g[0]+"/v1/vms/"+id+"/exec", "red", `{"command":"true"}`); code < 500 {
		t.Errorf("on a node that is cut off: %d %s", code, text)
	}
	t.Logf("a request to a node that is cut off fails after %v", time.Since(began).Round(time.Millisecond))
	if code, text := n.do("GET", g[1]+"/sandboxes/"+id, "red", ""); code != http.StatusOK {
		t.Errorf("its sandbox: %d %s", code, text)
	}
	other, err := n.create(g[1])
	if err != nil {
		t.Errorf("without that node: %v", err)
	}
	if out, err := exec.Command("ip", "link", "set", "to-node2", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	n.eventually("the sandbox is reached again", time.Minute, func() bool { return n.exec(g[0], id, "cat /tmp/file", "kept") == nil })
	for _, one := range []string{id, other} {
		n.do("DELETE", g[0]+"/sandboxes/"+one, "red", "")
	}
}

// TestNodeSDK has E2B's own SDK, unmodified, call every method that it has.
func TestNodeSDK(t *testing.T) {
	n := newNode(t)
	sdk := filepath.Join(os.Getenv("AGENTVM_TEST_PROGRAMS"), "e2b", "sdk.mjs")
	if _, err := os.Stat(sdk); err != nil {
		t.Skip("test.sh could not install the SDK: node is missing, or npm reached no registry")
	}
	n.scale(4)
	n.eventually("a gateway", time.Minute, func() bool { return len(n.gateways()) > 0 })
	gateway := n.gateways()[0]
	guide, err := filepath.Abs("../../../docs/guide/e2b.md")
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), "node", sdk)
	c.Env = append(os.Environ(), "E2B_CLUSTER=1", "E2B_API_KEY="+sdkKey, "E2B_API_URL="+gateway, "E2B_SANDBOX_URL="+gateway, "E2B_GUIDE="+guide)
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

// TestNodeFigures measures a claim of a warm pod to the result of the first command, by two gateways: when the pods that replace the claimed ones
// start later, as they do on other computers of a cluster, and when they start on these processors meanwhile.
func TestNodeFigures(t *testing.T) {
	n := newNode(t)
	most := 50
	if text := os.Getenv("AGENTVM_TEST_CLAIMS"); text != "" {
		most, _ = strconv.Atoi(text)
	}
	for _, at := range []int{1, 20, 50} {
		if at > most {
			break
		}
		for _, replaced := range []bool{false, true} {
			var took []time.Duration
			load, _ := os.ReadFile("/proc/loadavg")
			for range map[int]int{1: 3, 20: 2, 50: 2}[at] {
				n.scale(max(10, at))
				n.eventually("two gateways", time.Minute, func() bool { return len(n.gateways()) == 2 })
				time.Sleep(3 * time.Second) // for the kubelet's work after a pod's start
				load, _ = os.ReadFile("/proc/loadavg")
				took = append(took, n.claims(max(10, at), at, replaced)...)
			}
			if len(took) == 0 {
				t.Fatal("no claim succeeded")
			}
			slices.Sort(took)
			when := map[bool]string{false: "later", true: "meanwhile"}[replaced]
			t.Logf("%d at once, pods that replace them start %s: p50 %v, p99 %v, of %d; load before %s", at, when, took[len(took)/2].Round(time.Millisecond),
				took[len(took)*99/100].Round(time.Millisecond), len(took), strings.TrimSpace(string(load)))
		}
	}
}

// hold has the cluster's controllers do nothing until release is called, when it is asked to.
func (n *node) hold(asked bool) (release func()) {
	if !asked {
		return func() {}
	}
	all := func(int) bool { return true }
	signal("kube-controller-manager", syscall.SIGSTOP, all)
	release = sync.OnceFunc(func() { signal("kube-controller-manager", syscall.SIGCONT, all) })
	n.t.Cleanup(release) // a test that fails
	return release
}

// claims makes sandboxes, so many at once, and deletes them. Unless replaced, the cluster's controllers do nothing meanwhile.
func (n *node) claims(total, at int, replaced bool) (took []time.Duration) {
	n.t.Helper()
	defer n.hold(!replaced)()
	g := n.gateways()
	var mu sync.Mutex
	var ids []string
	var wg sync.WaitGroup
	slots := make(chan struct{}, at)
	for i := range total {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			began := time.Now()
			id, err := n.create(g[i%2])
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				n.t.Error(err)
				return
			}
			took, ids = append(took, time.Since(began)), append(ids, id)
		})
	}
	wg.Wait()
	for _, id := range ids {
		n.do("DELETE", g[0]+"/sandboxes/"+id, "red", "")
	}
	return took
}

// TestNodeChaos kills gateways, pods, the API server, the controllers, and the kubelet, and makes the object store fail, in the middle of clients'
// requests, which hibernate and resume, too. AGENTVM_CHAOS_ROUNDS says how often. A sandbox of which a client has learned has its file, once, unless its pod
// was killed; no other tenant reaches it.
func TestNodeChaos(t *testing.T) {
	n := newNode(t)
	rounds := 10
	if r, err := strconv.Atoi(os.Getenv("AGENTVM_CHAOS_ROUNDS")); err == nil {
		rounds = r
	}
	n.scale(3)
	var alive []string
	counts := map[string]int{}
	all := func(int) bool { return true }
	for round := range rounds {
		if round > 0 && round%20 == 0 {
			t.Logf("after %d rounds: %v", round, counts)
		}
		n.eventually("a gateway", 2*time.Minute, func() bool { return len(n.gateways()) > 0 })
		g := n.gateways()
		var wg sync.WaitGroup
		var made string
		var answer int
		moved := ""
		if len(alive) > 1 {
			moved = alive[len(alive)-1]
			wg.Go(func() {
				n.do("POST", g[rand.IntN(len(g))]+"/sandboxes/"+moved+"/"+[]string{"pause", "connect"}[round/6%2], "red", "")
			})
		}
		wg.Go(func() {
			code, text := n.do("POST", g[rand.IntN(len(g))]+"/v2/sandboxes", "red", `{"templateID":"base","timeout":3600}`)
			answer = code
			if code == http.StatusCreated {
				made = between(text, `"sandboxID":"`, `"`)
			}
		})
		time.Sleep(time.Duration(rand.IntN(60)) * time.Millisecond)
		switch what := []string{"agentvm-gateway", "kube-apiserver", "pod", "kube-controller-manager", "kubelet", "object store"}[round%6]; what {
		case "object store":
			objectStore.Load().fails.Store(true)
			wg.Wait()
			objectStore.Load().fails.Store(false)
			counts["object store failed"]++
		case "pod":
			wg.Wait()
			if len(alive) > 0 {
				n.must("-n", "agentvm", "delete", "pod", "--now", "-l", "id.agentvm.dev/"+alive[0])
				gone := alive[0]
				alive = alive[1:]
				n.eventually(gone+" is gone", time.Minute, func() bool {
					code, _ := n.do("GET", g[0]+"/sandboxes/"+gone, "red", "")
					return code == http.StatusNotFound
				})
				counts["pods killed"]++
			}
		case "agentvm-gateway":
			one := true
			counts[what] += kill(what, func(int) bool { was := one; one = false; return was })
		default:
			counts[what] += kill(what, all)
		}
		wg.Wait()
		counts[fmt.Sprint("create ", answer)]++
		n.eventually("the API server and a gateway", 3*time.Minute, func() bool {
			_, err := n.kubectl("get", "--raw", "/readyz")
			return err == nil && len(n.gateways()) > 0
		})
		if made != "" {
			n.eventually(made+" gets its file", time.Minute, func() bool {
				g := n.gateways()
				return len(g) > 0 && n.exec(g[0], made, "echo "+made+" > /tmp/name; cat /tmp/name", made) == nil
			})
			alive = append(alive, made)
		}
		if moved != "" && slices.Contains(alive, moved) { // whatever has become of the request: it is in one place, whole
			if round%2 == 0 {
				n.hibernate(moved)
				counts["hibernated"]++
			}
			n.resume(moved)
			counts["resumed"]++
		}
		for _, id := range alive {
			n.eventually(id+" has its file", time.Minute, func() bool {
				g := n.gateways()
				return len(g) > 0 && n.exec(g[rand.IntN(len(g))], id, "cat /tmp/name", id) == nil
			})
			if code, text := n.do("GET", n.gateways()[0]+"/sandboxes/"+id, "blue", ""); code != http.StatusNotFound {
				t.Errorf("round %d: another tenant has %s: %d %s", round, id, code, text)
			}
			n.eventually(id+" is in one pod", 2*time.Minute, func() bool { // one that a gateway has left which was killed is deleted by the next
				out, err := n.kubectl("-n", "agentvm", "get", "pods", "-l", "id.agentvm.dev/"+id, "-o", "name")
				return err == nil && len(strings.Fields(out)) == 1
			})
		}
		for len(alive) > 3 {
			id := alive[0]
			alive = alive[1:]
			n.eventually(id+" is killed", time.Minute, func() bool {
				g := n.gateways()
				if len(g) == 0 {
					return false
				}
				code, _ := n.do("DELETE", g[0]+"/sandboxes/"+id, "red", "")
				return code == http.StatusNoContent || code == http.StatusNotFound
			})
		}
	}
	t.Logf("%d rounds: %v", rounds, counts)
}
