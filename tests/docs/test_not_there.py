"""What README.md says is not there yet is not there: who builds it changes the page."""

import dataclasses
import inspect

import pytest

from monolith import Table, TableConfig, data
from monolith.checkpoint.reference_dump import NOT_IN_DUMPS
from monolith.cli.main import COMMANDS
from monolith.errors import InvalidArgumentError
from tests.docs.pages import page
from tests.meta.parity import is_there
from tools.acceptance import STATES, read_page

SECTION = page("README.md").partition("## What is not there yet\n")[2].partition("\n## ")[0]
ABSENT = {
    "Ranks": ["ranks"],
    "Serving": ["serve"],
}


def bullet(start):
    (line,) = (line for line in SECTION.splitlines() if line.startswith(f"- {start}"))
    return line


@pytest.mark.parametrize("start", ABSENT)
def test_a_part_that_is_not_there_has_no_package_and_no_command(start):
    assert bullet(start)
    assert not {*ABSENT[start]} & {*COMMANDS}
    assert not any(is_there(f"monolith.{name}") for name in ABSENT[start])


def test_tables_have_no_device():
    assert bullet("Tables on a GPU")
    parameters = [*inspect.signature(Table).parameters, *vars(Table)]
    fields = [field.name for field in dataclasses.fields(TableConfig)]
    assert "device" not in {*parameters, *fields}


def test_streams_are_folders_and_kafka_for_one_worker(tmp_path):
    assert bullet("Streams for jobs of several workers")
    assert data.stream.__all__ == ["kafka", "tail"]
    columns = data.Columns(["user"])
    with pytest.raises(InvalidArgumentError, match="one worker to train on a stream"):
        data.split_source(data.stream.tail(tmp_path, columns=columns).batch(8), num_workers=2)


def test_dense_parameters_of_the_reference_system_are_not_imported():
    assert bullet("Dense parameters of checkpoints that the reference system wrote")
    assert "dense parameters and their optimizer" in NOT_IN_DUMPS


def test_the_parts_that_are_not_there_have_ids_that_are_not_built():
    states = read_page()
    for req_id in ("SV-T1", "RT-T2", "GP-T1"):
        assert states[req_id].state == "not built"


def test_the_readme_names_states_of_the_page():
    words = ("passed", "passed in part", "skipped", "not built")
    assert "passed, passed in part, skipped or not built" in SECTION
    assert {*words} < {*STATES}
