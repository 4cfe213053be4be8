"""Write build/acceptance.json, acceptance id -> outcome: a plugin of pytest.

A test names its ids with `@pytest.mark.req("MN-PATH-T1", ...)`. An id is failed if one of its
tests failed, "passed in part" if some were skipped and others passed, else passed or skipped.
"""

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest


def pytest_configure(config):
    # Workers of pytest-xdist send their reports to the controller, which records all of them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.rootpath / "build" / "acceptance.json"))


def pytest_collection_modifyitems(items):
    for item in items:
        for mark in item.iter_markers("req"):
            item.user_properties.extend(("req", req_id) for req_id in mark.args)


class Recorder:
    """Collects the outcomes of every id and writes the file when the session ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A set-up or tear-down that passes proves nothing.
        if report.when != "call" and report.passed:
            return
        for key, req_id in report.user_properties:
            if key == "req":
                self.outcomes[str(req_id)].add(report.outcome)

    def pytest_sessionfinish(self) -> None:
        self.path.parent.mkdir(exist_ok=True)
        partial = self.path.with_suffix(".partial")
        summary = {req_id: summarise(outcomes) for req_id, outcomes in self.outcomes.items()}
        partial.write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n")
        os.replace(partial, self.path)


def summarise(outcomes: set[str]) -> str:
    """Return the outcome of an id from the outcomes of its tests."""
    if "failed" in outcomes:
        return "failed"
    if outcomes == {"passed", "skipped"}:
        return "passed in part"
    return outcomes.pop()
