#!/bin/sh
# secrets.sh NAMESPACE: prints, for `kubectl apply -f -`, what a run must keep to itself: Secret troop-token (what all
# of its processes share), Secret troop-tls (the head's certificate and key), and ConfigMap troop-authority (whom
# actors believe; not secret). Each call makes new ones; the authority's key is thrown away. Never commit the output.
#   examples/kubernetes/secrets.sh troop | kubectl apply -f -
# Who has a new token or certificate must be started again:
#   kubectl -n troop rollout restart statefulset/head deployment/actor
set -eu
umask 077
case "${1:-}" in
  '' | -* | *[!a-z0-9-]*) echo "usage: $0 NAMESPACE" >&2; exit 2 ;;
esac
namespace=$1
command -v openssl >/dev/null || { echo "$0: openssl is needed" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

openssl rand -hex 32 >token
key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1" 2>/dev/null; }
key authority.key
openssl req -x509 -new -key authority.key -sha256 -days 825 -subj "/CN=troop authority of $namespace" \
  -addext 'basicConstraints=critical,CA:TRUE,pathlen:0' -addext 'keyUsage=critical,keyCertSign' -out ca.crt
key tls.key
openssl req -new -key tls.key -subj '/CN=head' -out head.csr
names=DNS:localhost
for host in head-0.head; do
  names="$names,DNS:$host,DNS:$host.$namespace.svc,DNS:$host.$namespace.svc.cluster.local"
done
printf 'basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\nextendedKeyUsage=serverAuth\nsubjectAltName=%s\n' \
  "$names" >extensions
openssl x509 -req -in head.csr -CA ca.crt -CAkey authority.key -CAcreateserial -sha256 -days 825 -extfile extensions \
  -out tls.crt 2>/dev/null

indented() { sed 's/^/    /' "$1"; }
cat <<YAML
apiVersion: v1
kind: Secret
metadata:
  name: troop-token
  namespace: $namespace
type: Opaque
stringData:
  token: $(cat token)
---
apiVersion: v1
kind: Secret
metadata:
  name: troop-tls
  namespace: $namespace
type: kubernetes.io/tls
stringData:
  tls.crt: |
$(indented tls.crt)
  tls.key: |
$(indented tls.key)
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: troop-authority
  namespace: $namespace
data:
  ca.crt: |
$(indented ca.crt)
YAML
