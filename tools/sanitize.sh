#!/usr/bin/env bash
# Builds the C++ core and its tests under each sanitizer and runs every test.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build

for sanitizer in address thread; do
  build=build/$sanitizer-sanitizer
  echo "-- $sanitizer sanitizer"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DMONOLITH_TESTS=ON -DMONOLITH_WERROR=ON -DMONOLITH_SANITIZE="$sanitizer" >"$build.log" ||
    { cat "$build.log"; exit 1; }
  cmake --build "$build"
  # The thread sanitizer needs fixed addresses, which kernels with much randomisation do not give.
  no_randomisation=()
  if setarch "$(uname -m)" -R true 2>/dev/null; then no_randomisation=(setarch "$(uname -m)" -R); fi
  "${no_randomisation[@]}" ctest --test-dir "$build" --output-on-failure --no-tests=error
done
