#!/usr/bin/env bash
# Runs every static check, then names those that failed. Set up by `make check`.
set -uo pipefail
cd "$(dirname "$0")/.."
failed=()

check() {
  local name=$1
  shift
  echo "-- $name"
  "$@" || failed+=("$name")
}

cpp_format() {
  find native benchmarks -name '*.h' -o -name '*.cpp' | xargs -r clang-format --dry-run -Werror
}

check "Python format" python -m ruff format --check
check "Python lint" python -m ruff check
check "types" python -m mypy src tests tools examples benchmarks
check "C++ format" cpp_format
check "sizes" python tools/sizes.py
# Without the plugin: build/acceptance.json belongs to the test run.
check "layers, sizes, state, public names" python -m pytest -q -p no:tests.acceptance \
  tests/meta/test_layers.py tests/meta/test_sizes.py tests/meta/test_state.py tests/meta/test_public.py
check "stub of the compiled core" python tools/stubs.py
check "version and changelog" python tools/version.py

if [ ${#failed[@]} -gt 0 ]; then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
echo "all checks passed"
