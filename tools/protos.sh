#!/usr/bin/env bash
# Generates src/monolith/**/*_pb2.py and *_pb2_grpc.py anew, with a compiler in a virtual environment of its own.
# The version is fixed: code of a later one refuses protobuf 6, which some clients of serving need.
set -euo pipefail
cd "$(dirname "$0")/.."
version=1.81.1
venv=build/protoc-$version
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install -q "grpcio-tools==$version" setuptools
fi
for proto in $(find src/monolith -name '*.proto' | sort); do
  stubs=()
  [[ $proto == */app_master.proto ]] && stubs=(--pyi_out=src --grpc_python_out=src)  # the others need none
  "$venv/bin/python" -m grpc_tools.protoc -Isrc --python_out=src "${stubs[@]}" "$proto"
done
