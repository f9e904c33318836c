#!/bin/bash
# The gateway and deploy/ in a real cluster: etcd, containerd, runc and the CNI plugins are Debian's, kube-apiserver, kube-controller-manager,
# kube-scheduler and kubelet are built from ./cluster into AGENTVM_KUBERNETES (once, twelve processor minutes).
#
#     integration/kubernetes/test.sh [arguments of the test program, e.g. -test.run TestPods]
#     integration/kubernetes/test.sh --shell COMMAND...    # with KUBECONFIG, in the cluster's namespaces
#
# Two nodes, the second with a network of its own. Everything runs in network, mount and process namespaces of its own, needs root, and ends with
# this script. docs/measurements/fleet.md says what is real here and what is not.
set -euo pipefail
cd "$(dirname "$0")/../.."
programs=${AGENTVM_KUBERNETES:-${XDG_CACHE_HOME:-$HOME/.cache}/agentvm-kubernetes}

if [ "${1:-}" != --inside ]; then
    for tool in etcd kubectl openssl curl containerd ctr runc ip iptables unshare; do
        command -v "$tool" >/dev/null ||
            { echo "test.sh: $tool is missing (Debian: etcd-server kubernetes-client openssl curl containerd runc containernetworking-plugins iproute2 iptables)" >&2; exit 1; }
    done
    [ "$(id -u)" = 0 ] || { echo "test.sh: containerd and the kubelet need root" >&2; exit 1; }
    mkdir -p "$programs"
    version=$(cd integration/kubernetes/cluster && go list -m -f '{{.Version}}' k8s.io/kubernetes)
    for p in kube-apiserver kube-controller-manager kube-scheduler kubelet; do
        [ -x "$programs/$p" ] || (cd integration/kubernetes/cluster && CGO_ENABLED=0 nice -n 10 go build -trimpath \
            -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=35" \
            -o "$programs/$p" "k8s.io/kubernetes/cmd/$p")
    done
    # crds MODULE@VERSION SUM FILE... copies the schemas of others' objects that deploy/ has.
    mkdir -p "$programs/crds"
    crds() {
        local module=$1 sum=$2 at
        shift 2
        at=$(go mod download -json "$module")
        [[ $at == *"\"Sum\": \"$sum\""* ]] || { echo "test.sh: $module has another sum: $at" >&2; exit 1; }
        for file in "$@"; do cp "$(sed -n 's/.*"Dir": "\(.*\)".*/\1/p' <<<"$at")/$file" "$programs/crds/"; done
    }
    crds sigs.k8s.io/agent-sandbox@v1.0.3 h1:ZiR6xDrXTi1ItyvyDjLvM8lIety/3QVVJ5C98sjzV2Q= \
        k8s/crds/{agents.x-k8s.io_sandboxes,extensions.agents.x-k8s.io_{sandboxtemplates,sandboxwarmpools,sandboxclaims}}.yaml
    crds github.com/prometheus-operator/prometheus-operator@v0.85.0 h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s= \
        example/prometheus-operator-crd/monitoring.coreos.com_{servicemonitors,prometheusrules}.yaml
    chmod -R u+w "$programs/crds"
    export CGO_ENABLED=0
    go -C integration/kubernetes/cluster build -trimpath -ldflags '-s -w' -o "$programs/pause" ./pause
    go build -trimpath -ldflags '-s -w' -o "$programs/agentvm" ./cmd/agentvm
    go -C cmd/agentvm-gateway build -trimpath -ldflags '-s -w' -o "$programs/agentvm-gateway" .
    go -C cmd/agentvm-gateway test -c -o "$programs/fleet.test" ./fleet
    rm -rf "$programs/e2b"
    internal/api/e2b/sdk.sh --install "$programs/e2b"
    exec unshare --net --mount --pid --fork --mount-proc --kill-child "$0" --inside "$@"
fi
shift

dir=$(mktemp -d)
finish() {
    local code=$?
    [ "$code" = 0 ] || tail -n 5 "$dir"/*.log >&2
    for pid in $(jobs -p); do kill -9 "$pid" 2>/dev/null || true; done
    for pid in $(ps -e -o pid=); do [ "$pid" = 1 ] || [ "$pid" = $$ ] || kill -9 "$pid" 2>/dev/null || true; done
    sleep 0.5
    awk -v d="$dir/" 'index($2, d) == 1 {print $2}' /proc/mounts | sort -r | xargs -r -n 1 umount -l 2>/dev/null || true
    find /sys/fs/cgroup -depth -type d -path '*/agentvm-test*' -exec rmdir {} + 2>/dev/null || true
    rm -rf "$dir" || true
}
trap finish EXIT
chmod 755 "$dir" # pods' users pass through it

# The network: nodes at a bridge, and the pods of each behind another one. The Service of the API server leads to it, which is kube-proxy's work
# elsewhere. What is not a node's runs in the network of the first.
node=172.30.0.1
ip link set lo up
ip link add node0 type bridge # not a dummy, which not every kernel has
ip address add $node/24 dev node0
ip link set node0 up
ip route add default dev node0
sysctl -q -w net.ipv4.ip_forward=1
iptables -t nat -A PREROUTING -d 10.96.0.1 -p tcp --dport 443 -j DNAT --to $node:6443
: >"$dir/node2.net"
unshare --net="$dir/node2.net" true
on_node2() { nsenter --net="$dir/node2.net" "$@"; }
ip link add to-node2 type veth peer name eth0 netns "$dir/node2.net"
ip link set to-node2 master node0 up
on_node2 ip link set lo up
on_node2 ip address add 172.30.0.2/24 dev eth0
on_node2 ip link set eth0 up
on_node2 ip route add default via $node
on_node2 sysctl -q -w net.ipv4.ip_forward=1
ip route add 10.88.128.0/17 via 172.30.0.2

etcd --data-dir "$dir/etcd" --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 \
    --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster default=http://127.0.0.1:2380 >"$dir/etcd.log" 2>&1 &

openssl genrsa -out "$dir/accounts.key" 2048 2>/dev/null
token=$(openssl rand -hex 20)
(umask 077 && echo "$token,admin,admin,system:masters" >"$dir/tokens.csv" && : >"$dir/kubeconfig")
# One that is killed is started again, as a static pod would be.
(
    while :; do
        "$programs/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --advertise-address $node --secure-port 6443 --cert-dir "$dir/certificates" \
            --token-auth-file "$dir/tokens.csv" --authorization-mode RBAC --service-cluster-ip-range 10.96.0.0/16 --allow-privileged=false --kubelet-preferred-address-types InternalIP \
            --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$dir/accounts.key" --service-account-signing-key-file "$dir/accounts.key" \
            >>"$dir/apiserver.log" 2>&1 || true
    done
) &
export KUBECONFIG=$dir/kubeconfig
cat >"$KUBECONFIG" <<END
apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "https://$node:6443", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
END
for _ in $(seq 240); do
    kubectl get --raw /readyz >/dev/null 2>&1 && break
    sleep 0.5
done
kubectl get --raw /readyz >/dev/null || { tail -n 20 "$dir/apiserver.log" >&2; exit 1; }

(
    while :; do
        "$programs/kube-controller-manager" --kubeconfig "$KUBECONFIG" --authentication-kubeconfig "$KUBECONFIG" --authorization-kubeconfig "$KUBECONFIG" \
            --cert-dir "$dir/manager" --service-account-private-key-file "$dir/accounts.key" --root-ca-file "$dir/certificates/apiserver.crt" \
            --use-service-account-credentials=false --leader-elect=false --kube-api-qps 500 --kube-api-burst 1000 >>"$dir/manager.log" 2>&1 || true
    done
) &
"$programs/kube-scheduler" --kubeconfig "$KUBECONFIG" --authentication-kubeconfig "$KUBECONFIG" --authorization-kubeconfig "$KUBECONFIG" \
    --leader-elect=false --kube-api-qps 500 --kube-api-burst 1000 >"$dir/scheduler.log" 2>&1 &

# containerd_on NAME SUBNET COMMAND... starts containerd on a node, where COMMAND runs programs, and kubelet_on NAME ADDRESS COMMAND... the kubelet.
containerd_on() {
    local name=$1 subnet=$2 on=$dir/$1
    shift 2
    mkdir -p "$on/cni"
    cat >"$on/cni/10-bridge.conflist" <<END
{"cniVersion": "0.4.0", "name": "$name", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$on/cni-addresses", "ranges": [[{"subnet": "$subnet"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
    cat >"$on/containerd.toml" <<END
version = 2
root = "$on/containerd"
state = "$on/containerd-state"
[grpc]
  address = "$on/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/pause:test"
  restrict_oom_score_adj = true # a machine may lack CAP_SYS_RESOURCE, without which nothing is preferred in a shortage of memory
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$on/cni"
END
    "$@" containerd --config "$on/containerd.toml" >"$dir/$name-containerd.log" 2>&1 &
    for _ in $(seq 100); do ctr --address "$on/containerd.sock" version >/dev/null 2>&1 && break; sleep 0.1; done
}
containerd_on node1 10.88.0.0/17 env
containerd_on node2 10.88.128.0/17 on_node2

# image NAME PROGRAM USER VARIABLES makes an image of one program, and of an empty store, as the release's has one with Alpine.
image() {
    local work=$dir/image-$1
    mkdir -p "$work/root/usr/bin" "$work/root/var/lib/agentvm/store" "$work/root/tmp"
    cp "$programs/$2" "$work/root/usr/bin/$2"
    chmod -R go+rX "$work/root"
    chmod 1777 "$work/root/tmp"
    tar -C "$work/root" --owner 0 --group 0 -cf "$work/layer.tar" .
    cat >"$work/config.json" <<END
{"os": "linux", "architecture": "$(go env GOARCH)", "config": {"User": "$3", "Entrypoint": ["/usr/bin/$2"], "Env": [$4]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$(sha256sum "$work/layer.tar" | cut -d ' ' -f 1)"]}}
END
    echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"docker.io/library/$1:test\"], \"Layers\": [\"layer.tar\"]}]" >"$work/manifest.json"
    tar -C "$work" -cf "$work.tar" manifest.json config.json layer.tar
    for on in "$dir/node1" "$dir/node2"; do ctr --address "$on/containerd.sock" --namespace k8s.io images import "$work.tar" >/dev/null; done
    rm -rf "$work" "$work.tar"
}
image pause pause 65535:65535 ''
image agentvm agentvm 65532:65532 '"PATH=/usr/bin", "HOME=/var/lib/agentvm", "AGENTVM_STORE=/var/lib/agentvm/store", "TMPDIR=/var/lib/agentvm"'
image agentvm-gateway agentvm-gateway 65532:65532 '"PATH=/usr/bin"'

: >"$dir/resolv.conf"
kubelet_on() {
    local name=$1 address=$2 on=$dir/$1 controller
    shift 2
    cat >"$on/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /agentvm-test-$name
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://$on/containerd.sock
failSwapOn: false
maxPods: 300
kubeAPIQPS: 500
kubeAPIBurst: 1000
resolvConf: $dir/resolv.conf
podLogsDir: $on/pods
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
END
    for controller in /sys/fs/cgroup/*/; do [ -w "$controller/cgroup.procs" ] && mkdir -p "$controller/agentvm-test-$name"; done
    controller=/sys/fs/cgroup/cpuset
    if [ -e "$controller/agentvm-test-$name/cpuset.mems" ]; then
        cat $controller/cpuset.mems >"$controller/agentvm-test-$name/cpuset.mems"
        cat $controller/cpuset.cpus >"$controller/agentvm-test-$name/cpuset.cpus"
    fi
    while :; do
        "$@" "$programs/kubelet" --config "$on/kubelet.yaml" --kubeconfig "$KUBECONFIG" --root-dir "$on/kubelet" --cert-dir "$on/kubelet-certificates" \
            --hostname-override "$name" --node-ip "$address" >>"$dir/$name-kubelet.log" 2>&1 || true
    done
}
kubelet_on node1 $node env &
kubelet_on node2 172.30.0.2 on_node2 &
for name in node1 node2; do
    for _ in $(seq 120); do
        kubectl wait --for=condition=Ready node/$name --timeout 1s >/dev/null 2>&1 && break
        sleep 0.5
    done
    kubectl wait --for=condition=Ready node/$name --timeout 1s >/dev/null || { tail -n 20 "$dir/$name-kubelet.log" >&2; exit 1; }
done
echo "test.sh: $(kubectl get nodes --no-headers)" >&2

export AGENTVM_TEST_KUBECONFIG=$KUBECONFIG AGENTVM_TEST_CLUSTER=$dir AGENTVM_TEST_PROGRAMS=$programs
if [ "${1:-}" = --shell ]; then
    shift
    "$@"
else
    (cd cmd/agentvm-gateway/fleet && "$programs/fleet.test" "${@:--test.v}")
fi
