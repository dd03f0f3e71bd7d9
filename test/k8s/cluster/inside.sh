#!/usr/bin/env bash
# The first process inside the cluster's namespaces: it starts everything, and stays. cluster.sh calls it.
#
# Nodes are at 198.18.0.1 and up, pods at 198.19.NODE.0/24, services at 198.18.128.0/20: networks for tests (RFC 2544). The first node has
# the network namespace of the control plane; the others have their own, joined to it by a bridge.
set -euo pipefail
address=198.18.0.1
controllers=(cpu cpuacct cpuset memory pids devices freezer blkio systemd)

start() { # start NAME COMMAND...
	local name="$1"
	shift
	"$@" >"$RUN/logs/$name.log" 2>&1 &
}

wait_for() { # wait_for SECONDS COMMAND...
	local tries=$(($1 * 10))
	shift
	for _ in $(seq "$tries"); do
		"$@" >/dev/null 2>&1 && return
		sleep 0.1
	done
	echo "gave up waiting for: $*" >&2
	exit 1
}

control_groups() { # control_groups PATH: one for each node, which kubelet fills
	if [ -f /sys/fs/cgroup/cgroup.controllers ]; then # version 2: what a group may hand on is said in the one above it
		mkdir -p "/sys/fs/cgroup/$1"
		for group in /sys/fs/cgroup /sys/fs/cgroup/holdfast-k8s "/sys/fs/cgroup/$1"; do
			for controller in cpu cpuset memory hugetlb pids; do
				if grep -qw "$controller" "$group/cgroup.controllers"; then echo "+$controller" >"$group/cgroup.subtree_control"; fi
			done
		done
		return
	fi
	for controller in "${controllers[@]}"; do
		mkdir -p "/sys/fs/cgroup/$controller/$1"
	done
	for file in cpuset.cpus cpuset.mems; do
		cat "/sys/fs/cgroup/cpuset/$file" >"/sys/fs/cgroup/cpuset/$1/$file"
	done
}

machine() {
	hostname holdfast-k8s
	mount -t tmpfs tmpfs /run
	mkdir -p /run/netns
	for folder in /var/lib/cni /var/lib/kubelet /var/lib/containerd; do # what is written there goes with the cluster
		mkdir -p "$folder"
		mount -t tmpfs tmpfs "$folder"
	done
	mount --make-rshared /run
	mount --bind "$RUN" "$RUN" # what kubelet mounts has to be seen by containerd
	mount --make-rshared "$RUN"
	# kubelet insists on these kernel settings: it is shown what it wants, and nothing of the machine is changed.
	for setting in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1; do
		echo "${setting#*=}" >"/run/${setting//[\/=]/_}"
		mount --bind "/run/${setting//[\/=]/_}" "/proc/sys/${setting%=*}"
	done
	echo "nameserver $address" >"$RUN/resolv.conf"
	local resolver
	resolver="$(realpath -m /etc/resolv.conf)" # it may be a link into /run, which is empty here
	mkdir -p "$(dirname "$resolver")"
	[ -e "$resolver" ] || touch "$resolver"
	mount --bind "$RUN/resolv.conf" "$resolver"
	ip link set lo up
	ip link add nodes type bridge
	ip address add $address/24 dev nodes
	ip link set nodes up
	ip route add default via $address dev nodes # kube-proxy and CNI ask for one; it leads nowhere
	sysctl -qw net.ipv4.ip_forward=1
	control_groups holdfast-k8s
}

control_plane() {
	local token key="$RUN/service-accounts.key"
	openssl genrsa -out "$key" 2048 2>/dev/null
	token="$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
	echo "$token,admin,admin,system:masters" >"$RUN/tokens.csv"
	cat >"$RUN/kubeconfig" <<-END
		apiVersion: v1
		kind: Config
		current-context: test
		clusters: [{name: test, cluster: {server: "https://$address:6443", certificate-authority: $RUN/tls/apiserver.crt}}]
		users: [{name: admin, user: {token: $token}}]
		contexts: [{name: test, context: {cluster: test, user: admin, namespace: default}}]
	END
	start etcd "$BINARIES/etcd" --data-dir "$RUN/etcd" --unsafe-no-fsync
	start kube-apiserver "$BINARIES/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --advertise-address=$address \
		--secure-port=6443 --cert-dir="$RUN/tls" --service-cluster-ip-range=198.18.128.0/20 --authorization-mode=RBAC --token-auth-file="$RUN/tokens.csv" \
		--allow-privileged=true --kubelet-preferred-address-types=InternalIP --service-account-issuer=https://kubernetes.default.svc \
		--service-account-key-file="$key" --service-account-signing-key-file="$key"
	wait_for 30 "$BINARIES/kubectl" --kubeconfig "$RUN/kubeconfig" get --raw /readyz
	start kube-controller-manager "$BINARIES/kube-controller-manager" --kubeconfig="$RUN/kubeconfig" --bind-address=127.0.0.1 --leader-elect=false \
		--node-monitor-grace-period=12s --node-monitor-period=2s --service-account-private-key-file="$key" --root-ca-file="$RUN/tls/apiserver.crt" --cert-dir="$RUN/tls-controllers"
	start kube-scheduler "$BINARIES/kube-scheduler" --kubeconfig="$RUN/kubeconfig" --bind-address=127.0.0.1 --leader-elect=false --cert-dir="$RUN/tls-scheduler"
	printf '.:53 {\n bind %s\n errors\n ready\n kubernetes cluster.local {\n  kubeconfig %s test\n  ttl 1\n }\n}\n' $address "$RUN/kubeconfig" >"$RUN/Corefile"
	start coredns "$BINARIES/coredns" -conf "$RUN/Corefile"
}

node_files() { # node_files NUMBER: the configurations of its programs
	local home="$RUN/node$1" state="/run/node$1"
	mkdir -p "$home/cni" "$state"
	cat >"$home/containerd.toml" <<-END
		version = 2
		root = "$home/containerd"
		state = "$state/containerd"
		[grpc]
		  address = "$state/containerd.sock"
		[plugins."io.containerd.grpc.v1.cri"]
		  sandbox_image = "docker.io/library/pause:1"
		  restrict_oom_score_adj = true
		  disable_apparmor = true
		  enable_unprivileged_ports = true
		  [plugins."io.containerd.grpc.v1.cri".cni]
		    bin_dir = "/usr/lib/cni"
		    conf_dir = "$home/cni"
		  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
		    runtime_type = "io.containerd.runc.v2"
	END
	cat >"$home/cni/pods.conflist" <<-END
		{"cniVersion": "0.4.0", "name": "pods$1", "plugins": [
		  {"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": false, "hairpinMode": true, "ipam": {
		    "type": "host-local", "dataDir": "$home/addresses", "ranges": [[{"subnet": "198.19.$1.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
		  {"type": "portmap", "capabilities": {"portMappings": true}}]}
	END
	cat >"$home/kubelet.yaml" <<-END
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		failCgroupV1: false
		cgroupDriver: cgroupfs
		cgroupRoot: /holdfast-k8s/node$1
		containerRuntimeEndpoint: unix://$state/containerd.sock
		authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
		authorization: {mode: AlwaysAllow}
		clusterDNS: [$address]
		clusterDomain: cluster.local
		resolvConf: $RUN/resolv.conf
		podLogsDir: $home/pod-logs
		syncFrequency: 10s
		nodeStatusUpdateFrequency: 2s
		nodeStatusReportFrequency: 10s
		nodeLeaseDurationSeconds: 8
		evictionHard: {nodefs.available: 1%, imagefs.available: 1%, memory.available: 100Mi}
		imageGCHighThresholdPercent: 100
	END
}

node() { # node NUMBER
	local home="$RUN/node$1" state="/run/node$1" own="198.18.0.$1" in=()
	node_files "$1"
	if [ "$1" -gt 1 ]; then
		ip netns add "node$1"
		ip link add "veth$1" type veth peer name eth0 netns "node$1"
		ip link set "veth$1" master nodes up
		ip -n "node$1" link set lo up
		ip -n "node$1" address add "$own/24" dev eth0
		ip -n "node$1" link set eth0 up
		ip -n "node$1" route add default via $address
		in=(nsenter "--net=/run/netns/node$1")
		"${in[@]}" sysctl -qw net.ipv4.ip_forward=1
	fi
	for other in $(seq "$NODES"); do
		[ "$other" = "$1" ] || "${in[@]}" ip route replace "198.19.$other.0/24" via "198.18.0.$other"
	done
	control_groups "holdfast-k8s/node$1"
	start "containerd$1" "${in[@]}" containerd --config "$home/containerd.toml"
	wait_for 20 ctr -a "$state/containerd.sock" version
	for image in "$RUN"/images/*; do
		ctr -a "$state/containerd.sock" -n k8s.io images import "$image" >>"$RUN/logs/images.log" 2>&1
	done
	start "kubelet$1" "${in[@]}" "$BINARIES/kubelet" --config="$home/kubelet.yaml" --kubeconfig="$RUN/kubeconfig" --node-ip="$own" \
		--hostname-override="node$1" --root-dir="$home/kubelet" --cert-dir="$home/tls" --oom-score-adj=0
	start "kube-proxy$1" "${in[@]}" "$BINARIES/kube-proxy" --kubeconfig="$RUN/kubeconfig" --proxy-mode=iptables --hostname-override="node$1" \
		--cluster-cidr=198.19.0.0/16 --oom-score-adj=0 --conntrack-max-per-core=0
}

all_ready() {
	[ "$("$BINARIES/kubectl" --kubeconfig "$RUN/kubeconfig" get nodes --no-headers | grep -c ' Ready')" = "$NODES" ]
}

machine
control_plane
for number in $(seq "$NODES"); do node "$number"; done
wait_for 60 all_ready
touch "$RUN/ready"
trap 'exit 0' TERM
while :; do
	sleep 3600 &
	wait $!
done
