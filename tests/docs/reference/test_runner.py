from dataclasses import fields

import pytest

from monolith.native_training.mlp_utils import MLPEnv
from monolith.native_training.runner_utils import RunnerConfig
from monolith.native_training.service_discovery import ServiceDiscoveryType
from tests.docs.pages import first_cells, first_rows, page, run_snippets
from tests.meta.parity import code
from tools import config_table

PAGE = page("docs/reference/runner.md")


def test_snippets_of_the_page_run():
    attempted, problems = run_snippets("docs/reference/runner.md")
    assert attempted > 10
    assert problems == ""


def test_the_table_of_fields_is_as_the_tool_writes_it():
    assert config_table.runner_table() in PAGE, "run python -m tools.config_table"


def test_what_the_page_calls_refused_is_refused():
    rows = {code(name)[0]: text for name, _, text in first_rows(PAGE, "| field |")}
    refused = {name for name, text in rows.items() if text.startswith("refused: needs")}
    assert rows.keys() <= {field.name for field in fields(RunnerConfig)}
    for name in refused:
        config = RunnerConfig()
        setattr(config, name, object())
        with pytest.raises(NotImplementedError, match=f"expected {name}="):
            config.check()
    assert len(refused) > 10


def test_every_discovery_is_in_the_table():
    names = {name.strip("`") for name in first_cells(PAGE, "| `discovery_type` |")}
    assert names == set(ServiceDiscoveryType.__members__)


def test_variables_are_attributes():
    env = MLPEnv({})
    for name in ("framework", "log_path", "debug_port", "entrypoint_dir", "task_cmd"):
        assert getattr(env, name) is None
        assert f"MLP_{name.upper()}" in PAGE
    assert (env.ssh_port, env.cpu, env.gpu, env.gpu_type, env.mem) == (22, 0, 0, "", 0)
