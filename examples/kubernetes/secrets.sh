#!/bin/sh
# secrets.sh NAMESPACE [SHARDS]: prints, for `kubectl apply -f -`, what a run must keep to itself: Secret troop-token
# (what all of its processes share), Secret troop-http (the password of the status page and of /metrics, which follows from
# that), Secret troop-tls (certificate and key of head and shards, of which there may be
# SHARDS, 8 by default) and Secret troop-tls-actor (those of actors). Each call makes new ones; the key of the authority
# that signs them is thrown away. Never commit the output.
#   examples/kubernetes/secrets.sh troop | kubectl apply -f -
# Whoever runs with the old ones must be started again:
#   kubectl -n troop rollout restart statefulset/head deployment/actor
set -eu
umask 077
shards=${2:-8}
case "${1:-}" in
  '' | -* | *[!a-z0-9-]*) echo "usage: $0 NAMESPACE [SHARDS]" >&2; exit 2 ;;
esac
case "$shards" in
  *[!0-9]*) echo "usage: $0 NAMESPACE [SHARDS]" >&2; exit 2 ;;
esac
namespace=$1
command -v openssl >/dev/null || { echo "$0: openssl is needed" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1" 2>/dev/null; }
# signed NAME USAGE SUBJECT_ALTERNATIVE_NAMES
signed() {
  key "$1.key"
  openssl req -new -key "$1.key" -subj "/CN=$1" -out "$1.csr"
  printf '%s\n' basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature "extendedKeyUsage=$2" \
    "subjectAltName=$3" >"$1.extensions"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey authority.key -CAcreateserial -sha256 -days 825 \
    -extfile "$1.extensions" -out "$1.crt" 2>/dev/null
}
key authority.key
openssl req -x509 -new -key authority.key -sha256 -days 825 -subj "/CN=troop in $namespace" -out ca.crt \
  -addext 'keyUsage=critical,keyCertSign'
names=DNS:localhost
host=head-0.head
shard=0
while :; do
  names="$names,DNS:$host,DNS:$host.$namespace.svc,DNS:$host.$namespace.svc.cluster.local"
  [ "$shard" -lt "$shards" ] || break
  host=replay-$shard.replay
  shard=$((shard + 1))
done
signed server serverAuth,clientAuth "$names"
signed actor clientAuth DNS:actor

# secret NAME FILES_PREFIX
secret() {
  printf -- '---\napiVersion: v1\nkind: Secret\nmetadata:\n  name: %s\n  namespace: %s\ntype: kubernetes.io/tls\nstringData:\n' \
    "$1" "$namespace"
  for entry in "tls.crt $2.crt" "tls.key $2.key" 'ca.crt ca.crt'; do
    printf '  %s: |\n' "${entry% *}"
    sed 's/^/    /' "${entry#* }"
  done
}
token=$(openssl rand -hex 32)
# As monitor::http_password: HMAC-SHA-256 of a label, after the label's length in eight bytes.
password=$(printf '\014\0\0\0\0\0\0\0troop 1 http' | openssl dgst -sha256 -hmac "$token" | sed 's/.*= //')
cat <<YAML
apiVersion: v1
kind: Secret
metadata:
  name: troop-token
  namespace: $namespace
type: Opaque
stringData:
  token: $token
---
apiVersion: v1
kind: Secret
metadata:
  name: troop-http
  namespace: $namespace
type: Opaque
stringData:
  password: $password
YAML
secret troop-tls server
secret troop-tls-actor actor
