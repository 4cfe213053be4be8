#!/usr/bin/env bash
# Builds the C++ core with its tests and runs them: tools/native_tests.sh plain|address|thread ...
# address and thread are sanitizers. Set up by `make test` and `make test-all`.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build

run() {
  local build=build/native-$1 sanitizer=$1 type=RelWithDebInfo no_randomisation=()
  if [ "$sanitizer" = plain ]; then sanitizer='' type=Release; fi
  echo "-- C++ tests, $1"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=$type \
    -DMONOLITH_TESTS=ON -DMONOLITH_BENCHMARKS=ON \
    -DMONOLITH_WERROR=ON -DMONOLITH_SANITIZE="$sanitizer" >"$build.log" ||
    { cat "$build.log"; exit 1; }
  cmake --build "$build"
  # The thread sanitizer needs fixed addresses, which kernels with much randomisation do not give.
  if setarch "$(uname -m)" -R true 2>/dev/null; then no_randomisation=(setarch "$(uname -m)" -R); fi
  "${no_randomisation[@]}" ctest --test-dir "$build" --parallel 2 \
    --output-on-failure --no-tests=error
}

for kind in "${@:-}"; do  # none is an error too
  case $kind in
    plain | address | thread) ;;
    *)
      echo "[tools/native_tests.sh] expected plain, address or thread, got '$kind'" >&2
      exit 2
      ;;
  esac
done
for kind in "$@"; do run "$kind"; done
