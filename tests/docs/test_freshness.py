"""The tables of docs/freshness.md are those of the newest run, and its sizes those of the code."""

import pytest

from benchmarks import history
from benchmarks.quality import online
from examples import clicks
from examples.clicks_task import EXPIRY_DAYS
from tests.docs.pages import page

PAGE = page("docs/freshness.md")
WORDS = " ".join(PAGE.split())


@pytest.fixture(scope="module")
def newest():
    return history.read_runs(online.RESULTS)[-1]


def test_the_tables_are_those_of_the_newest_run(newest):
    assert online.table(newest["figures"]) in PAGE
    assert online.loss_table(newest["figures"]) in PAGE


def test_the_page_names_commit_date_and_machine_of_the_run(newest):
    assert f"commit {newest['commit'][:7]}, {newest['date']}, {newest['machine']}" in WORDS


def test_the_run_has_the_sizes_and_seeds_of_the_code(newest):
    for line in newest["figures"]:
        assert {key: line[key] for key in online.SIZES} == online.SIZES
        assert set(line["seeds"]) <= set(online.SEEDS)
    assert {line["drift"] for line in newest["figures"]} == set(online.DRIFTS)


@pytest.mark.parametrize(
    "fact",
    [
        f"{clicks.BATCH * clicks.STEPS_PER_DAY:,} samples a day",
        f"in batches of {online.SIZES['batch']}",
        f"After {online.SIZES['warm_days']} days the arms start",
        f"the next {online.SIZES['days']} days:",
        f"rows that expire after {EXPIRY_DAYS} days",
        f"is gone after {clicks.HALF_LIFE_DAYS} days",
        f"{clicks.NEW_USERS * clicks.STEPS_PER_DAY} users of {clicks.USERS:,} and "
        f"{clicks.NEW_ITEMS * clicks.STEPS_PER_DAY} items of {clicks.ITEMS:,} are new each day",
    ],
)
def test_the_sizes_are_those_of_the_code(fact):
    assert fact in WORDS
