#!/usr/bin/env bash
# Installs what tests need beside Python: the ZooKeeper server and a Java runtime, on Debian as root. Elsewhere
# the tests that need them are skipped, and say what to install.
set -euo pipefail
packages=(libzookeeper-java default-jre-headless)

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing=()
if command -v dpkg-query >/dev/null; then
  for package in "${packages[@]}"; do
    is_installed "$package" || missing+=("$package")
  done
else
  missing=("${packages[@]}")
fi
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "[tools/debian.sh] expected ${missing[*]}, got none; tests of ZooKeeper are skipped" \
    "(Debian: apt-get install ${missing[*]})" >&2
  exit 0
fi
echo "== installing ${missing[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
