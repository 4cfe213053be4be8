# Every target sets itself up: a compiler, make and Python 3.10+ are enough.
PYTHON ?= python3
PY := .venv/bin/python
SOURCES := $(shell find src native -not -name '*.pyc' -not -name __pycache__ 2>/dev/null)
# Two builds in one build folder would spoil each other.
LOCK := $(shell command -v flock >/dev/null && echo flock build/.lock)
# Workers of pytest share the cores: a thread without work gives its core to others. Rewritten test
# files are kept for the next run, also where Python is told to keep none.
PYTEST := OMP_WAIT_POLICY=PASSIVE PYTHONDONTWRITEBYTECODE= $(PY) -m pytest
PIP_INSTALL := $(PY) -m pip install --quiet -c constraints.txt
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.PHONY: help build demo demo-servers demo-sync demo-stream test test-fast test-all test-gpu check stubs bench bench-peers bench-history format clean
.DEFAULT_GOAL := help

help:  ## print this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

.venv/.ready: constraints.txt pyproject.toml tools/venv.sh
	@echo "== creating .venv with the pinned tools"
	PYTHON=$(PYTHON) bash tools/venv.sh
	touch $@

build/.installed: .venv/.ready CMakeLists.txt $(SOURCES)
	@echo "== building the package and installing it into .venv"
	@mkdir -p build
	$(LOCK) $(PIP_INSTALL) --no-build-isolation -C cmake.define.MONOLITH_WERROR=ON '.[dev]'
	@touch $@

build: build/.installed  ## create .venv, build the C++ core, install the package
	@echo "== the package is installed in .venv"

demo: build  ## train a ranking model on a stream of new ids, compare, draw a figure
	@echo "== training the task of examples/clicks_task.py"
	.venv/bin/monolith train examples/clicks_task.py --set train.threads=1 --set train.evict_every=12
	@echo "== the same model beside hashed ids, and a figure"
	$(PY) examples/demo.py

demo-servers: build  ## train on two servers and two workers, kill a server half-way, compare (a minute)
	@echo "== the task of examples/clicks_task.py as a job, undisturbed and with a killed server"
	$(PY) examples/demo_servers.py

demo-sync: build  ## train on two synchronous ranks and in one process, compare (a minute)
	@echo "== the task of examples/clicks_task.py, in one process and on two ranks"
	$(PY) examples/demo_sync.py

demo-stream: build  ## train on a stream, kill the trainer, and count each click (a minute)
	@echo "== a stream of clicks, and a trainer that is killed"
	.venv/bin/monolith demo stream

# Packages of the system that some tests need; where they cannot be installed, these are skipped.
build/.packages: tools/debian.sh
	@mkdir -p build
	bash tools/debian.sh
	@touch $@

test: build build/.packages  ## run every test but the slow ones, C++ tests also under the thread sanitizer (a quarter of an hour)
	@echo "== building and running the C++ tests, plain and under the thread sanitizer"
	bash tools/native_tests.sh plain thread
	@echo "== running the tests, without those marked slow"
	$(PYTEST) -q -n auto -m "not slow"; status=$$?; $(PY) tools/acceptance.py && exit $$status

test-fast: build  ## run the tests of one process that are not marked thorough (under one minute)
	@echo "== running the fast tests"
	$(PYTEST) -q -n auto --hypothesis-profile=fast -m "not slow and not dist and not thorough"

test-all: build build/.packages  ## run every test, and the C++ tests under the sanitizers
	@echo "== building and running the C++ tests, plain and under both sanitizers"
	bash tools/native_tests.sh plain address thread
	@echo "== running all tests"
	$(PYTEST) --hypothesis-profile=long; status=$$?; $(PY) tools/acceptance.py && exit $$status

test-gpu: build  ## run the tests marked gpu on a CUDA device, and record the outcomes (on a clean tree)
	@echo "== running the tests of devices"
	$(PY) tools/device_tests.py

check: build  ## check format, lint, types, sizes, stubs and the changelog
	@echo "== checking format, lint, types, sizes, stubs and the changelog"
	bash tools/check.sh

stubs: build  ## rewrite src/monolith/_native.pyi from the built module
	@echo "== writing src/monolith/_native.pyi"
	$(PY) tools/stubs.py --write

bench: build  ## measure speed and memory, and record the figures (on a clean tree)
	@echo "== running the benchmarks"
	$(PY) benchmarks/run.py

bench-peers: build  ## the same beside the peer libraries, which it installs aside
	@echo "== running the benchmarks beside the peers"
	bash benchmarks/peers/install.sh
	$(PY) benchmarks/run.py --peers

bench-history: .venv/.ready  ## print the recorded runs of a stage: make bench-history STAGE=lookup
	@$(PY) benchmarks/run.py --history $(STAGE)

format: build  ## rewrite Python and C++ files in the project's format
	@echo "== formatting"
	$(PY) -m ruff check --fix --exit-zero
	$(PY) -m ruff format
	find native benchmarks -name '*.h' -o -name '*.cpp' | xargs -r clang-format -i

clean:  ## remove .venv and everything built
	@echo "== removing .venv and build"
	rm -rf .venv build dist
