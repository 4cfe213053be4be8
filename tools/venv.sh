#!/usr/bin/env bash
# Creates .venv with the pinned build tools. Needs Python 3.10+; on Debian installs its venv and headers.
set -euo pipefail
python=${PYTHON:-python3}

has_venv_and_headers() {
  "$python" - <<'EOF' 2>/dev/null
import ensurepip, os, sysconfig, venv
os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))
EOF
}

if ! has_venv_and_headers; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "[tools/venv.sh] expected the venv module and the headers of $python, got neither or one;" \
      "install them (Debian: apt-get install python3-venv python3-dev)" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv python3-dev
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet -c constraints.txt cmake nanobind ninja scikit-build-core
