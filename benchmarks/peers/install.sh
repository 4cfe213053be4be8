#!/usr/bin/env bash
# Installs the peers of the benchmarks, each in an environment of its own: build/peers/<name>.
#
#   benchmarks/peers/install.sh [tfra] [fbgemm]      (no name: all of them; installed ones are left alone)
#
# A plain `pip install torchrec` would replace FBGEMM by a CUDA build, hence --no-deps below.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3.11}

say() { echo "[peers] $*" >&2; }

# TensorFlow 2.15, which TFRA needs, ends at Python 3.11; torch 2.13 begins at 3.10.
usable="import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 11))"
if ! "$python" -c "$usable" 2>/dev/null; then
  say "expected Python 3.10 or 3.11 with venv as '$python', got none;" \
    "install python3.11 and python3.11-venv, or name one: PYTHON=/path/to/python3.11 $0"
  exit 1
fi

# new_environment NAME: creates build/peers/NAME, empty, and sets $environment.
new_environment() {
  environment=$root/build/peers/$1
  rm -rf "$environment"
  "$python" -m venv "$environment"
}

pip_install() { "$environment/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

install_tfra() {
  pip_install "tensorflow-cpu==2.15.1" "tensorflow-recommenders-addons==0.7.2"
}

install_fbgemm() {
  pip_install "torch==2.13.0" "numpy"
  pip_install --no-deps "torchrec==1.8.0" "fbgemm-gpu-cpu==1.8.0"
  # What the two import, apart from torch and numpy.
  pip_install --no-deps "tensordict" "torchmetrics" "lightning-utilities" "pyre-extensions" \
    "typing-inspect" "mypy-extensions" "iopath" "portalocker" "tqdm" "psutil" "packaging" \
    "cloudpickle" "orjson" "importlib-metadata" "zipp" "pyvers"
}

check_tfra() {
  "$1/bin/python" -c "import tensorflow, tensorflow_recommenders_addons" >/dev/null 2>&1
}

check_fbgemm() {
  "$1/bin/python" -c "import torch, fbgemm_gpu, torchrec" >/dev/null 2>&1
}

peers=("$@")
if [ ${#peers[@]} -eq 0 ]; then peers=(tfra fbgemm); fi

for peer in "${peers[@]}"; do
  case $peer in tfra | fbgemm) ;; *) say "unknown peer '$peer': expected tfra or fbgemm"; exit 2 ;; esac
  if "check_$peer" "$root/build/peers/$peer"; then
    say "$peer: already installed in build/peers/$peer"
    continue
  fi
  say "$peer: installing into build/peers/$peer (several hundred megabytes)"
  new_environment "$peer"
  "install_$peer"
  "check_$peer" "$environment" || { say "$peer: installed, but its import fails"; exit 1; }
  say "$peer: done"
done
