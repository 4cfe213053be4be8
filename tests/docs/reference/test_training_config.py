from dataclasses import fields

import pytest

from monolith.native_training.cpu_training import DistributedCpuTrainingConfig
from tests.docs.pages import first_rows, page, run_snippets
from tests.meta.parity import code
from tools import config_table

PAGE = page("docs/reference/training_config.md")


def test_snippets_of_the_page_run():
    attempted, problems = run_snippets("docs/reference/training_config.md")
    assert attempted > 6
    assert problems == ""


def test_the_table_of_fields_is_as_the_tool_writes_it():
    assert config_table.table() in PAGE, "run python -m tools.config_table"


def test_what_the_page_calls_refused_is_refused():
    rows = {code(name)[0]: text for name, _, text in first_rows(PAGE, "| field |")}
    refused = {name for name, text in rows.items() if text.startswith("refused: needs")}
    for field in fields(DistributedCpuTrainingConfig):
        config = DistributedCpuTrainingConfig(**{field.name: object()})
        if field.name in refused:
            with pytest.raises(NotImplementedError, match=f"expected {field.name}="):
                config.check()
        else:
            config.check()
    assert len(refused) > 10
