#!/bin/sh
# bootstrap.sh run|test|fuzz|atari|lab|bench|docs|format: makes sure that what this verb needs is there. On Debian and its
# kin a missing package is installed; elsewhere, or without the right to do so, the script says what to install.
# TROOP_NO_BOOTSTRAP=1 skips all of it.
set -eu
[ -z "${TROOP_NO_BOOTSTRAP:-}" ] || exit 0

compiler='g++ cmake ninja-build ccache'
libraries='libeigen3-dev libcli11-dev libspdlog-dev'
codecs='liblz4-dev libzstd-dev libcereal-dev'
network='libboost1.81-dev libssl-dev'
monitor='prometheus-cpp-dev libprotobuf-dev'
gymnasium='pybind11-dev python3-dev python3-venv'
# Without these the tests that need them say that they were not tried.
optional="iproute2 python3-yaml yamllint rclone $gymnasium"
case "${1:-}" in
  run)    packages="$compiler $libraries $codecs $network $monitor" ;;
  test)   packages="$compiler $libraries $codecs $network $monitor doctest-dev libbenchmark-dev python3 openssl $optional" ;;
  fuzz)   packages="$compiler $libraries $codecs $network $monitor clang libclang-rt-14-dev" ;;
  atari)  packages="$compiler $libraries $codecs $network $monitor $gymnasium" ;;
  lab)    packages="python3 python3-yaml openssl curl podman buildah runc netavark aardvark-dns dnsmasq-base catatonit debootstrap jq" ;;
  bench)  packages="$compiler $libraries $codecs $network $monitor libbenchmark-dev python3" ;;
  docs)   packages="$compiler doxygen" ;;
  format) packages='clang-format' ;;
  *)      echo "usage: $0 run|test|fuzz|atari|lab|bench|docs|format" >&2; exit 2 ;;
esac

# A tool counts when it can be called, whoever installed it.
has_command() {
  case "$1" in
    ninja-build) command -v ninja ;;
    clang) command -v clang++ ;;
    iproute2) command -v ip ;;
    python3-yaml) python3 -c 'import yaml' ;;
    *-dev) return 1 ;;
    *) command -v "$1" ;;
  esac >/dev/null 2>&1
}

has_header() {
  case "$1" in
    libeigen3-dev) set -- eigen3/Eigen/Core ;;
    libcli11-dev) set -- CLI/CLI.hpp ;;
    libspdlog-dev) set -- spdlog/spdlog.h ;;
    liblz4-dev) set -- lz4.h ;;
    libzstd-dev) set -- zstd.h ;;
    libcereal-dev) set -- cereal/cereal.hpp ;;
    libboost1.81-dev) set -- boost/asio.hpp ;;
    libssl-dev) set -- openssl/ssl.h ;;
    prometheus-cpp-dev) set -- prometheus/registry.h ;;
    libprotobuf-dev) set -- google/protobuf/io/coded_stream.h ;;
    doctest-dev) set -- doctest/doctest.h ;;
    libbenchmark-dev) set -- benchmark/benchmark.h ;;
    *) return 1 ;;
  esac
  for prefix in /usr /usr/local /opt/homebrew "${CMAKE_PREFIX_PATH:-/usr}"; do
    [ ! -e "$prefix/include/$1" ] || return 0
  done
  return 1
}

is_debian() {
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null &&
    grep -Eq '^ID(_LIKE)?=.*debian' /etc/os-release 2>/dev/null
}

missing=
if is_debian; then
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $packages 2>/dev/null) || true
  for package in $packages; do
    case "
$installed
" in
      *"
installed $package
"*) ;;
      *) has_command "$package" || missing="$missing $package" ;;
    esac
  done
else
  for package in $packages; do
    case " ccache $optional libclang-rt-14-dev " in *" $package "*) continue ;; esac
    has_command "$package" || has_header "$package" || missing="$missing $package"
  done
fi
missing=${missing# }
[ -n "$missing" ] || exit 0

if ! is_debian; then
  echo "Missing here (by the names of Debian's packages): $missing" >&2
  echo 'Install them with the package manager of this system, or set TROOP_NO_BOOTSTRAP=1 if CMake finds them.' >&2
  exit 1
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then
  as_root='sudo -n'
  if ! $as_root true 2>/dev/null; then
    echo 'Some packages are missing. Run this, then make again:' >&2
    echo "  apt-get install --no-install-recommends $missing    (as root)" >&2
    exit 1
  fi
fi

echo "Installing: $missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 "$@" </dev/null >"$log" 2>&1 && return
  cat "$log" >&2
  return 1
}
# An index that is a little old is no reason to stop: the installation shows whether it does.
apt update || echo 'apt-get update failed; trying with the package index that is here.' >&2
apt install --no-install-recommends $missing
