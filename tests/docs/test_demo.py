import pytest

from examples import clicks, demo
from tests.docs.pages import first_cells, page

PAGE = " ".join(page("docs/demo.md").split())


def test_the_features_are_those_of_the_stream():
    assert first_cells(page("docs/demo.md"), "| feature |") == list(clicks.FEATURES)


@pytest.mark.parametrize(
    "fact",
    [
        f"{clicks.USERS:,} users and {clicks.ITEMS:,} items are alive",
        f"{clicks.STEPS_PER_DAY} steps a day",
        f"{clicks.NEW_USERS} users and {clicks.NEW_ITEMS} items leave",
        f"gone after {clicks.HALF_LIFE_DAYS} days",
        f"| 0 to {clicks.HISTORY} |",
        f"`Adagrad({demo.TABLE_RATE})`, `Expiry({demo.EXPIRY_DAYS})`",
    ],
)
def test_the_sizes_are_those_of_the_code(fact):
    assert fact in PAGE
