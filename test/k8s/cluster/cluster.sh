#!/usr/bin/env bash
# A real Kubernetes cluster on one machine, without a registry and without a way out: control plane, CoreDNS and several nodes, each
# with kubelet, containerd and kube-proxy, in mount, process and network namespaces of their own.
#
#   cluster.sh up IMAGE.tar...   start it (root; Debian's containerd, runc, containernetworking-plugins, conntrack, iptables, iproute2)
#   cluster.sh exec COMMAND...   run a command inside, with KUBECONFIG set
#   cluster.sh down              stop it, and leave nothing behind
#
# HOLDFAST_K8S_DIR is the folder of build.sh, HOLDFAST_K8S_NODES how many nodes there are. The cluster lives in /var/tmp/holdfast-k8s.
set -euo pipefail
cd "$(dirname "$0")"
export RUN=/var/tmp/holdfast-k8s NODES="${HOLDFAST_K8S_NODES:-5}"
BINARIES="$(../build.sh folder)"
export BINARIES

# identity says which process a number means: its start in this boot.
identity() {
	[ -r "/proc/$1/stat" ] && echo "$1 $(cat /proc/sys/kernel/random/boot_id) $(sed 's/.*) //' "/proc/$1/stat" | cut -d' ' -f20)"
}

# outside prints the process that holds the namespaces, if it is still the one that was started.
outside() {
	local number
	[ -O "$RUN/outside" ] && read -r number _ <"$RUN/outside" && [ "$(identity "$number")" = "$(cat "$RUN/outside")" ] && echo "$number"
}

inside() { # prints the first process inside
	local number
	number="$(outside)" && pgrep -P "$number" -f inside.sh
}

down() {
	local number
	if number="$(inside)"; then kill -9 "$number"; fi
	for _ in $(seq 100); do
		outside >/dev/null || break
		sleep 0.1
	done
	for folder in /sys/fs/cgroup/*/holdfast-k8s /sys/fs/cgroup/holdfast-k8s; do
		for _ in $(seq 50); do
			[ ! -d "$folder" ] || find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null && break
			sleep 0.1
		done
	done
	# Only a folder that this script has made: it holds this file, of this user.
	if [ -O "$RUN/outside" ]; then rm -rf "$RUN"; fi
}

case "${1:-}" in
up)
	shift
	down
	mkdir -m 700 "$RUN" # it is there already when it is somebody else's
	chmod 755 "$RUN"    # pods run as other users
	mkdir "$RUN/logs" "$RUN/images" "$RUN/volumes"
	for image in "$@"; do ln -s "$(realpath "$image")" "$RUN/images/"; done
	nohup unshare --fork --kill-child --pid --mount-proc --mount --net --uts --ipc --propagation private ./inside.sh >"$RUN/logs/inside.log" 2>&1 &
	identity $! >"$RUN/outside"
	for _ in $(seq 2400); do
		[ -f "$RUN/ready" ] && exit
		outside >/dev/null || break
		sleep 0.1
	done
	echo "the cluster did not come up: see $RUN/logs" >&2
	tail -n 20 "$RUN/logs/inside.log" >&2
	exit 1
	;;
exec)
	shift
	first="$(inside)"
	exec nsenter -t "$first" -m -n -u -i -p env KUBECONFIG="$RUN/kubeconfig" PATH="$BINARIES:$PATH" "$@"
	;;
down) down ;;
*)
	echo "usage: cluster.sh up IMAGE.tar...|exec COMMAND...|down" >&2
	exit 2
	;;
esac
