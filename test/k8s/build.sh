#!/usr/bin/env bash
# Builds what a Kubernetes cluster consists of, and Helm, from the Go module proxy, into a folder outside of the checkout that is used
# again: build.sh api (what the API needs: about 6 minutes cold on 2 cores) or build.sh full (a whole cluster: about 10 minutes, 5 GB of
# build cache). build.sh folder prints the folder; build.sh have-full says whether a whole cluster is there.
set -euo pipefail
cd "$(dirname "$0")/binaries"

kubernetes=1.36.3
helm=v4.3.1
coredns=v1.15.0
helm_docs=v1.14.2
# Other versions, or another way to build them, are another folder.
key="$kubernetes-$(cat ../build.sh go.mod go.sum | sha256sum | cut -c1-12)"
folder="${HOLDFAST_K8S_DIR:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/holdfast-k8s/$key}"
api=(etcd kube-apiserver kubectl helm helm-docs)
full=("${api[@]}" kube-controller-manager kube-scheduler kubelet kube-proxy coredns)

have() {
	for name in "$@"; do [ -x "$folder/$name" ] || return 1; done
}

build() { # build NAME PACKAGE
	local start=$SECONDS
	[ -x "$folder/$1" ] && return
	go build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$kubernetes \
		-X k8s.io/component-base/version.gitMajor=${kubernetes%%.*} -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$kubernetes")" \
		-o "$folder/$1.part" "$2"
	mv "$folder/$1.part" "$folder/$1"
	echo "built $1 in $((SECONDS - start)) s"
}

install() { # install NAME MODULE: one that says itself how it is built
	local start=$SECONDS
	[ -x "$folder/$1" ] && return
	GOBIN="$folder/$1.part" go install "$2"
	mv "$folder/$1.part/$1" "$folder/$1"
	rmdir "$folder/$1.part"
	echo "built $1 in $((SECONDS - start)) s"
}

export CGO_ENABLED=0
case "${1:-}" in
folder) echo "$folder" ;;
have-full) have "${full[@]}" ;;
api | full)
	mkdir -p "$folder"
	exec 9>"$folder/lock"
	flock 9 # one builds, the others wait
	for name in "${api[@]}" $([ "$1" = full ] && echo "${full[@]}"); do
		case "$name" in
		etcd) build etcd go.etcd.io/etcd/server/v3 ;;
		helm-docs) install helm-docs "github.com/norwoodj/helm-docs/cmd/helm-docs@$helm_docs" ;;
		helm) install helm "helm.sh/helm/v4/cmd/helm@$helm" ;;
		coredns) install coredns "github.com/coredns/coredns@$coredns" ;;
		*) build "$name" "k8s.io/kubernetes/cmd/$name" ;;
		esac
	done
	;;
*)
	echo "usage: build.sh api|full|folder|have-full" >&2
	exit 2
	;;
esac
