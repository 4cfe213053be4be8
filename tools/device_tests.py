"""Runs the tests marked gpu on a machine with a CUDA device, and keeps what came out.

python tools/device_tests.py                          run, and add to benchmarks/results
python tools/device_tests.py PATH...                  the same with the tests below these paths only
python tools/device_tests.py --out FILE --commit SHA  run in a copy of the tree without git
python tools/device_tests.py --add FILE               add such a file, on a clean tree of its commit

A run holds device, versions, commit, date, the outcome of every test, and digests of the sources of
the tests. tests/acceptance.py counts an outcome as long as its test still has the same digest.
"""

import argparse
import ast
import datetime
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # started as a file, Python looks for modules beside it

from tools.commit import TreeError, clean_commit  # noqa: E402

RESULTS = Path("benchmarks") / "results" / "gpu_acceptance.json"
_ADVICE = "commit them: a result is of one commit"


class RecordError(Exception):
    """A run that cannot be recorded."""


def digest_of_test(path: str, root: Path = ROOT) -> str:
    """Hash a test file and the modules below tests/ that it imports, directly or not."""
    names, left = set[str](), [path]
    while left:
        name = left.pop()
        if name not in names and (root / name).exists():
            names.add(name)
            left += _imports(root / name)
    return _hash(root, names)


def tree_digest(root: Path = ROOT) -> str:
    """Hash the sources of the package, the core and the tests."""
    kinds = {".py", ".h", ".cpp"}
    paths = (path for top in ("src", "native", "tests") for path in (root / top).rglob("*"))
    return _hash(root, {str(p.relative_to(root)) for p in paths if p.suffix in kinds})


def outcome_on_device(runs: Sequence[Mapping[str, Any]], node: str, root: Path) -> str | None:
    """Return the outcome of a test in the newest run that has it.

    Returns:
        "passed", "failed" or "skipped"; "out of date" if the test was changed after the run; None
        if no run has the test.
    """
    path = node.partition("::")[0]
    for run in reversed(runs):
        if node in run.get("tests", {}):
            is_same = run["sources"].get(path) == digest_of_test(path, root)
            return str(run["tests"][node]) if is_same else "out of date"
    return None


def read_runs(root: Path = ROOT) -> list[dict[str, Any]]:
    """Read all recorded runs, the newest last."""
    path = root / RESULTS
    return list(json.loads(path.read_text())) if path.exists() else []


def add_run(run: Mapping[str, Any], root: Path = ROOT) -> None:
    """Append a run to the recorded ones.

    Raises:
        TreeError: the tree has changes.
        RecordError: the run is of another commit, or of other sources.
    """
    commit = clean_commit("device_tests", _ADVICE, root=root)
    if run["commit"] != commit:
        raise RecordError(
            f"[device_tests] expected a run of the checked out commit {commit}, got one of "
            f"{run['commit']}; check that commit out and add the run there"
        )
    if run["tree"] != tree_digest(root):
        raise RecordError(
            f"[device_tests] expected a run of the sources of {commit}, got one of a changed tree; "
            "run it again on a clean tree"
        )
    path = root / RESULTS
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*read_runs(root), run], indent=1) + "\n")


@dataclass(eq=False)  # pytest keeps its plugins in sets
class Outcomes:
    """A plugin of pytest that collects the outcome and the acceptance ids of every test."""

    tests: dict[str, str]
    ids: dict[str, list[str]]

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            marks = item.iter_markers("req")
            self.ids[item.nodeid] = [req_id for mark in marks for req_id in mark.args]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:
            before = self.tests.get(report.nodeid)
            self.tests[report.nodeid] = "failed" if before == "failed" else report.outcome


def run_tests(words: list[str]) -> tuple[int, Outcomes]:
    """Run pytest in this process; its exit status, and what came out."""
    import pytest

    outcomes = Outcomes({}, {})
    status = pytest.main(["-q", "-m", "gpu", "-p", "no:tests.acceptance", *words], [outcomes])
    return int(status), outcomes


def describe_run(outcomes: Outcomes, commit: str, root: Path = ROOT) -> dict[str, Any]:
    """Return what is recorded of a run on the device of this machine."""
    import torch

    files = sorted({node.partition("::")[0] for node in outcomes.tests})
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "tree": tree_digest(root),
        "sources": {path: digest_of_test(path, root) for path in files},
        "tests": dict(sorted(outcomes.tests.items())),
        "ids": sorted({i for node in outcomes.tests for i in outcomes.ids.get(node, [])}),
    }


def main() -> int:
    """Run or add; the status of pytest, or 2 where nothing was recorded."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="run the tests below this path")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the run to this file")
    parser.add_argument("--commit", metavar="SHA", help="the commit, where there is no git")
    parser.add_argument("--add", type=Path, metavar="FILE", help="add a run that --out wrote")
    options = parser.parse_args()
    try:
        if options.add is not None:
            add_run(_read_run(options.add))
            return 0
        return _run_and_record(options.paths, options.out, options.commit)
    except (RecordError, TreeError) as error:
        print(error, file=sys.stderr)
        return 2


def _run_and_record(paths: list[str], out: Path | None, commit: str | None) -> int:
    import torch

    if not torch.cuda.is_available():
        raise RecordError("[device_tests] expected a CUDA device, got none")
    if (out is None) != (commit is None):
        raise RecordError("[device_tests] expected --out and --commit together, got one of them")
    commit = commit or clean_commit("device_tests", _ADVICE)
    status, outcomes = run_tests(paths)
    if not outcomes.tests:
        raise RecordError(f"[device_tests] expected tests that ran, got none (pytest: {status})")
    run = describe_run(outcomes, commit)
    if out is None:
        add_run(run)
    else:
        out.write_text(json.dumps(run, indent=1) + "\n")
    return status


def _read_run(path: Path) -> dict[str, Any]:
    try:
        run = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(f"[device_tests] expected a run in {path}, got: {error}") from error
    if not isinstance(run, dict) or not {"commit", "tree", "sources", "tests"} <= run.keys():
        raise RecordError(f"[device_tests] expected a file that --out wrote, got {path}")
    return run


def _imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [f"{name.replace('.', '/')}.py" for name in names if name.startswith("tests.")]


def _hash(root: Path, names: set[str]) -> str:
    total = hashlib.sha256()
    for name in sorted(names):
        total.update(f"{name}\0{hashlib.sha256((root / name).read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
