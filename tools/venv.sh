#!/usr/bin/env bash
# Creates .venv with the pinned build tools. Needs Python 3.10+ only; installs the venv module on Debian.
set -euo pipefail
python=${PYTHON:-python3}

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "[tools/venv.sh] $python has no venv module; install it (Debian: apt-get install python3-venv)" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv python3-dev
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet -c constraints.txt cmake nanobind ninja scikit-build-core
