import json
import math
from dataclasses import dataclass, field

import pytest
import torch

import monolith
from monolith.errors import OpError
from monolith.table.disk.config_json import config_from_json
from monolith.train import Trainer, TrainSettings
from tests.train.tasks import Clicks, Raise


def read(folder, name):
    return json.loads((folder / name).read_bytes())


def fit(folder, task=None, *hooks):
    with Trainer(task or Clicks(), TrainSettings(checkpoint_dir=str(folder))) as trainer:
        trainer.fit(hooks=hooks)


@pytest.mark.req("MN-UTIL-T3")
def test_a_run_writes_settings_versions_and_table_configs(tmp_path):
    fit(tmp_path)
    info = read(tmp_path, "debugging_info.pb")
    assert info["settings"]["train"]["checkpoint_dir"] == str(tmp_path)
    assert info["versions"]["torch"] == torch.__version__
    assert info["versions"]["monolith-torch"] == monolith.__version__
    assert (info["task"], info["labels"], info["dense"]) == ("Clicks", ["click"], ["hour"])
    assert info["features"]["user"] == {"table": "user", "dim": 4, "combiner": "sum"}
    with Trainer(Clicks()) as trainer:
        configs = {name: table.config for name, table in trainer.features.tables.items()}
    read_back = {name: config_from_json(c, "test") for name, c in info["tables"].items()}
    assert read_back == configs


@pytest.mark.req("MN-UTIL-T3")
def test_a_run_writes_its_modules_with_parameters(tmp_path):
    fit(tmp_path)
    tree = read(tmp_path, "meta_graph_for_debugging.pb")
    assert tree["model"] == {
        "class": "torch.nn.modules.linear.Linear",
        "parameters": {
            "weight": {"dtype": "torch.float32", "shape": [1, 9]},
            "bias": {"dtype": "torch.float32", "shape": [1]},
        },
        "buffers": {},
        "modules": {},
    }
    assert tree["features"]["class"].endswith(".Features")


@pytest.mark.req("MN-UTIL-T3")
def test_a_run_that_fails_at_its_first_step_has_written_both_files(tmp_path):
    with pytest.raises(KeyError, match="first"):
        fit(tmp_path, None, Raise(1, KeyError("first")))
    assert read(tmp_path, "debugging_info.pb")["step"] == 0
    assert read(tmp_path, "meta_graph_for_debugging.pb")["model"]


def test_any_object_of_a_users_settings_is_written(tmp_path):
    @dataclass
    class Odd:
        rates: dict = field(default_factory=lambda: {(1, 2): math.inf, 3: torch.float16})

    task = Clicks()
    task.settings = Odd()
    fit(tmp_path, task)
    rates = read(tmp_path, "debugging_info.pb")["settings"]["task"]["rates"]
    assert rates == {"(1, 2)": "inf", "3": "torch.float16"}


def test_a_file_that_cannot_be_written_ends_the_run_at_its_start(tmp_path):
    (tmp_path / "debugging_info.pb").mkdir()
    with pytest.raises(OpError, match=r"debugging_info\.pb"):
        fit(tmp_path)
    assert not list(tmp_path.glob("model.ckpt*"))
