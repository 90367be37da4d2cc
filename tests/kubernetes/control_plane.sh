#!/bin/sh
# control_plane.sh build|start|stop: a Kubernetes control plane (etcd, API server, controllers, scheduler) on
# 127.0.0.1, without nodes. Debian 12's source package of Kubernetes 1.20 is the newest that can be built without
# fetching anything else. `build` needs root for apt-get, 3 GB and about ten minutes of a core, once. `start` prints the
# path of a kubeconfig. TROOP_LAB is the folder for all of it.
set -eu
lab=${TROOP_LAB:-${XDG_CACHE_HOME:-$HOME/.cache}/troop-lab}
programs='kube-apiserver kube-controller-manager kube-scheduler'
mkdir -p "$lab/bin" "$lab/run"
cd "$lab"

is_built() {
  for program in $programs; do [ -x "bin/$program" ] || return 1; done
}

# The source comes from where this system's packages come from; its own list of sources stays as it is.
fetch() {
  apt-get install -q -y --no-install-recommends golang-go etcd-server dpkg-dev >apt.log 2>&1 || { cat apt.log >&2; exit 1; }
  mkdir -p lists/partial
  sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >source.sources
  apt() {
    apt-get -q -o Dir::Etc::SourceList="$lab/source.sources" -o Dir::Etc::SourceParts=- -o Dir::State::Lists="$lab/lists" "$@"
  }
  apt update >apt.log 2>&1 && apt source --download-only kubernetes >>apt.log 2>&1 || { cat apt.log >&2; exit 1; }
  rm -rf go && mkdir -p go/src/k8s.io
  dpkg-source -x kubernetes_1.20*.dsc go/src/k8s.io/kubernetes >>apt.log
}

build() {
  ! is_built || exit 0
  [ -d go/src/k8s.io/kubernetes ] || fetch
  export GOPATH="$lab/go" GO111MODULE=off CGO_ENABLED=0 GOCACHE="$lab/cache" GOFLAGS="-p=${JOBS:-1}"
  root=k8s.io/kubernetes
  version=$root/vendor/k8s.io/component-base/version
  cd "go/src/$root"
  # The one generated file that the package leaves out.
  if [ ! -e pkg/generated/openapi/zz_generated.openapi.go ]; then
    go build -o "$lab/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    folders=$(grep -rl '+k8s:openapi-gen=' --include='*.go' staging/src/k8s.io pkg cmd |
      grep -vE '_test\.go|sample-|code-generator|_examples|generated\.openapi|kube-openapi' | xargs -n 1 dirname | sort -u |
      sed -e "s#^staging/src/#$root/vendor/#" -e "s#^\(pkg\|cmd\)#$root/\1#" | paste -sd ,)
    "$lab/openapi-gen" -i "$folders" -p $root/pkg/generated/openapi -O zz_generated.openapi \
      -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r /dev/null --output-base "$lab/generated" >"$lab/openapi.log" 2>&1
    cp "$lab/generated/$root/pkg/generated/openapi/zz_generated.openapi.go" pkg/generated/openapi/
  fi
  for program in $programs; do
    [ -x "$lab/bin/$program" ] ||
      nice -n 19 go build -ldflags "-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20" \
        -o "$lab/bin/$program" "./cmd/$program"
  done
}

# background NAME COMMAND...
background() {
  name=$1
  shift
  nice -n 5 "$@" >"run/$name.log" 2>&1 </dev/null &
  echo $! >"run/$name.pid"
}

# answers NAME URL: waits until URL says ok
answers() {
  for _ in $(seq 240); do
    curl -sk -m 2 -H "Authorization: Bearer $token" "$2" | grep -q '^ok' && return
    kill -0 "$(cat "run/$1.pid")" 2>/dev/null || break
    sleep 0.5
  done
  echo "$1 does not answer:" >&2
  tail -n 5 "run/$1.log" >&2
  stop
  exit 1
}

start() {
  is_built || { echo "$0: nothing is built; run $0 build" >&2; exit 1; }
  stop
  rm -rf run && mkdir run
  token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
  (umask 077; echo "$token,admin,admin,\"system:masters\"" >run/tokens)
  openssl genrsa -out run/accounts.key 2048 2>/dev/null
  cat >run/kubeconfig <<YAML
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "https://127.0.0.1:16443", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: $token}}]
contexts: [{name: lab, context: {cluster: lab, user: admin}}]
current-context: lab
YAML
  background etcd etcd --data-dir run/etcd --unsafe-no-fsync --listen-client-urls http://127.0.0.1:12379 \
    --advertise-client-urls http://127.0.0.1:12379 --listen-peer-urls http://127.0.0.1:12380 \
    --initial-advertise-peer-urls http://127.0.0.1:12380 --initial-cluster default=http://127.0.0.1:12380
  # ExtendedResourceToleration: as GKE does, pods that want a GPU tolerate the taint of nodes that have one.
  background kube-apiserver bin/kube-apiserver --etcd-servers=http://127.0.0.1:12379 --bind-address=127.0.0.1 \
    --advertise-address=127.0.0.1 --secure-port=16443 --cert-dir=run/certificates --token-auth-file=run/tokens \
    --authorization-mode=RBAC --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file=run/accounts.key --service-account-signing-key-file=run/accounts.key \
    --service-cluster-ip-range=10.96.0.0/16 --enable-admission-plugins=ExtendedResourceToleration
  answers kube-apiserver https://127.0.0.1:16443/readyz
  background kube-controller-manager bin/kube-controller-manager --kubeconfig=run/kubeconfig \
    --service-account-private-key-file=run/accounts.key --root-ca-file=run/certificates/apiserver.crt --leader-elect=false \
    --bind-address=127.0.0.1 --port=0 --secure-port=16257 --cert-dir=run/controllers --node-monitor-period=2s \
    --node-monitor-grace-period=20s --pod-eviction-timeout=5s
  background kube-scheduler bin/kube-scheduler --kubeconfig=run/kubeconfig --leader-elect=false --bind-address=127.0.0.1 \
    --port=0 --secure-port=16259 --cert-dir=run/scheduler
  answers kube-controller-manager https://127.0.0.1:16257/healthz
  answers kube-scheduler https://127.0.0.1:16259/healthz
  echo "$lab/run/kubeconfig"
}

stop() {
  for program in kube-scheduler kube-controller-manager kube-apiserver etcd; do
    [ -e "run/$program.pid" ] || continue
    pid=$(cat "run/$program.pid")
    # A number may be another process's by now.
    if [ "$(ps -o comm= -p "$pid" 2>/dev/null)" = "$(echo $program | cut -c 1-15)" ]; then
      kill "$pid"
      while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    fi
    rm -f "run/$program.pid"
  done
}

case "${1:-}" in
  build | start | stop) "$1" ;;
  *) echo "usage: $0 build|start|stop" >&2; exit 2 ;;
esac
