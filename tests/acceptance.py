"""Pytest plugin: writes build/acceptance.json, acceptance id -> passed, failed or skipped.

A test names its ids with `@pytest.mark.req("MN-PATH-T1", ...)`. An id is failed if one of its
tests failed, else passed if one passed, else skipped.
"""

import json
import os
from pathlib import Path

import pytest

SEVERITY = ("skipped", "passed", "failed")


def pytest_configure(config):
    # Workers of pytest-xdist send their reports to the controller, which records all of them.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.rootpath / "build" / "acceptance.json"))


def pytest_collection_modifyitems(items):
    for item in items:
        for mark in item.iter_markers("req"):
            item.user_properties.extend(("req", req_id) for req_id in mark.args)


class Recorder:
    """Collects the outcome of every id and writes the file when the session ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Set-up and tear-down count only when they fail or skip: passing them proves nothing.
        if report.when != "call" and report.passed:
            return
        for key, req_id in report.user_properties:
            if key == "req":
                known = self.outcomes.get(str(req_id), "skipped")
                self.outcomes[str(req_id)] = max(known, report.outcome, key=SEVERITY.index)

    def pytest_sessionfinish(self) -> None:
        self.path.parent.mkdir(exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.outcomes, indent=2, sort_keys=True) + "\n")
        os.replace(partial, self.path)
