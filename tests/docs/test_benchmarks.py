"""The figures of docs/benchmarks.md and README.md are those of the recorded runs."""

import re

import pytest

from benchmarks import history, run
from tests.docs.pages import first_rows, page
from tests.meta.tree import ROOT

README_ROWS = first_rows(page("README.md"), "| what | TFRA")
PAGE_ROWS = first_rows(page("docs/benchmarks.md"), "| stages | machine | commit |")


def runs(stage):
    return history.read_runs(ROOT / run.RESULTS / f"{stage}.json")


def commits(stage):
    return {one["commit"].replace("-dirty", "+") for one in runs(stage)}


def test_every_file_of_results_is_of_a_stage_or_a_study_and_has_runs():
    files = {path.stem for path in (ROOT / run.RESULTS).glob("*.json")} - {"gpu_acceptance"}
    studies = {f"quality_{path.stem}" for path in (ROOT / "benchmarks/quality").glob("*.py")}
    assert len(files) > 25
    assert files <= {*run.STAGES} | studies
    for one in (one for stage in files for one in runs(stage)):
        assert {"machine", "commit", "date", "figures"} == one.keys()


@pytest.mark.parametrize("cells", PAGE_ROWS, ids=lambda cells: cells[0])
def test_the_page_names_a_recorded_commit_of_each_stage(cells):
    stages, words = re.findall(r"`(\w+)`", cells[0]), cells[2]
    commit = re.findall(r"\b[0-9a-f]{7}\b", words)[0]
    assert all(any(one.startswith(commit) for one in commits(stage)) for stage in stages)


@pytest.mark.parametrize("cells", README_ROWS, ids=lambda cells: cells[0])
@pytest.mark.parametrize(("column", "peer"), [(1, "tfra"), (2, "fbgemm"), (3, "torch")])
def test_the_readme_has_the_ratios_of_the_recorded_run(cells, column, peer):
    shown, stage, commit = cells[column], cells[4].strip("`"), cells[6]
    if shown == "-":
        return
    (recorded,) = (one for one in runs(stage) if one["commit"].replace("-dirty", "+") == commit)
    values = [line["ratios"].get(peer, -1) for line in recorded["figures"]]
    half_of_the_last_place = 0.5001 * 10 ** -len(shown.partition(".")[2])
    assert any(abs(value - float(shown)) <= half_of_the_last_place for value in values)
