#!/usr/bin/env bash
# Writes the modules of the .proto files anew: PYTHON=/path/to/python bash tools/protos.sh, with a
# Python that has grpcio-tools 1.81.1, whose code runs with protobuf 6.33.5 and later.
set -euo pipefail
cd "$(dirname "$0")/../src"
"${PYTHON:-python}" -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
  --grpc_python_out=. monolith/*/*.proto
