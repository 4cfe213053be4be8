import pytest

from monolith.checkpoint.reference_dump.dump_layout import KINDS
from monolith.checkpoint.reference_dump.dump_stream import MAX_BYTES
from tests.docs.pages import first_rows, page, run_snippets

PAGE = page("docs/reference/dumps.md")
ROWS = {cells[0].strip("`"): cells[1:] for cells in first_rows(PAGE, "| optimizer |")}


def test_the_snippets_run():
    attempted, problems = run_snippets("docs/reference/dumps.md")
    assert attempted > 15
    assert problems == ""


def test_the_table_has_every_optimizer():
    assert set(ROWS) == {optimizer.__name__ for optimizer in KINDS}


@pytest.mark.parametrize("optimizer", KINDS, ids=lambda optimizer: optimizer.__name__)
def test_a_row_names_the_dump_and_the_state_of_an_optimizer(optimizer):
    dump, state = ROWS[optimizer.__name__]
    assert dump == (f"`{KINDS[optimizer].name}`" if KINDS[optimizer].number else "none")
    names = ", ".join(f"`{column.name}`" for column in optimizer().state(1))
    assert state.startswith(names or "nothing")


def test_the_limit_is_that_of_the_reader():
    assert f"at\nmost {MAX_BYTES >> 20} MiB" in PAGE
