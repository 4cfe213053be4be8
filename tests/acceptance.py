"""Write build/acceptance.json, acceptance id -> outcome: a plugin of pytest.

A test names its ids with `@pytest.mark.req("MN-PATH-T1", ...)`. An id is failed if one of its
tests failed, "passed in part" if some were skipped and others passed, else passed or skipped.

A test marked gpu that is skipped here has the outcome of the newest recorded run on a device, if
the test is still the same (`tools/device_tests.py`). build/acceptance_notes.json says for which ids
the recorded outcome does not count.
"""

import functools
import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from tools.device_tests import outcome_on_device, read_runs

OUT_OF_DATE = "device result out of date"


def pytest_configure(config):
    # Workers of pytest-xdist send their reports to the controller, which records all of them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.rootpath))


def pytest_collection_modifyitems(items):
    for item in items:
        for mark in item.iter_markers("req"):
            item.user_properties.extend(("req", req_id) for req_id in mark.args)
        if item.get_closest_marker("gpu"):
            item.user_properties.append(("gpu", True))


class Recorder:
    """Collects the outcomes of every id and writes the files when the session ends."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "build"
        self.outcomes: defaultdict[str, set[str]] = defaultdict(set)
        self.notes: dict[str, str] = {}
        runs = read_runs(root)
        self.on_device = functools.cache(lambda node: outcome_on_device(runs, node, root))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A set-up or tear-down that passes proves nothing.
        if report.when != "call" and report.passed:
            return
        outcome: str = report.outcome
        ids = [str(value) for key, value in report.user_properties if key == "req"]
        if report.skipped and "gpu" in dict(report.user_properties):
            device_outcome = self.on_device(report.nodeid)
            if device_outcome == "out of date":
                self.notes.update(dict.fromkeys(ids, OUT_OF_DATE))
            elif device_outcome is not None:
                outcome = device_outcome
        for req_id in ids:
            self.outcomes[req_id].add(outcome)

    def pytest_sessionfinish(self) -> None:
        self.folder.mkdir(exist_ok=True)
        summary = {req_id: summarise(outcomes) for req_id, outcomes in self.outcomes.items()}
        write(self.folder / "acceptance.json", summary)
        write(self.folder / "acceptance_notes.json", self.notes)


def summarise(outcomes: set[str]) -> str:
    """Return the outcome of an id from the outcomes of its tests."""
    if "failed" in outcomes:
        return "failed"
    if outcomes == {"passed", "skipped"}:
        return "passed in part"
    return outcomes.pop()


def write(path: Path, values: dict[str, str]) -> None:
    """Replace a JSON file in one step."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")
    os.replace(partial, path)
