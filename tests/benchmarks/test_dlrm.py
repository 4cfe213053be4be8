"""The DLRM: the same model in every system, and its processes."""

import json
from typing import Any

import pytest
import torch

from benchmarks import dlrm
from benchmarks.click_model import Sizes, batches
from benchmarks.click_torch import DenseStep, DlrmNet
from benchmarks.dlrm_ours import DlrmWorker, OurDlrm, parquet
from benchmarks.harness import Rules
from examples.dlrm import Dlrm

pytestmark = pytest.mark.thorough

SMALL = Sizes(rows=50, batch=16, threads=1, model="dlrm")


@pytest.fixture
def _folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.dlrm_ours.FOLDER", tmp_path / "dlrm")


def test_the_dense_part_is_that_of_the_example() -> None:
    example, net = Dlrm(), DlrmNet()
    example.load_state_dict(net.state_dict())
    dense, rows = torch.rand(3, 13), torch.rand(3, 26 * 16)
    assert torch.equal(net(dense, rows), example(dense, rows))


def test_the_dense_part_alone_has_gradients_of_rows() -> None:
    step = DenseStep(SMALL)
    assert step(torch.ones(16)) > step(torch.ones(16))
    assert step._parts[0].grad is None
    assert step._parts[1].grad is not None


def test_the_trainer_and_the_loop_by_hand_take_the_same_steps() -> None:
    made, trainer, by_hand = batches(SMALL, 3), OurDlrm(), OurDlrm()
    trainer.create(SMALL)
    by_hand.create(SMALL)
    ready = [trainer.prepare(batch) for batch in made]
    dense = [torch.from_numpy(batch.dense) for batch in made]
    assert trainer.fit(ready)[-1] == float(by_hand.loop(zip(ready, dense, strict=True)))


@pytest.mark.usefixtures("_folder")
def test_the_file_has_the_batches_that_are_ready() -> None:
    ours = OurDlrm()
    read = next(iter(parquet(SMALL)))
    ready = ours.prepare(batches(SMALL, 1)[0])
    assert torch.equal(read.features["feature_25"].values, ready.features["feature_25"].values)
    assert torch.equal(read.dense["dense_12"], ready.dense["dense_12"])
    assert torch.equal(read.label, ready.label)


@pytest.mark.usefixtures("_folder")
def test_a_worker_has_samples_of_each_kind_and_parts_of_a_step() -> None:
    worker = DlrmWorker(OurDlrm())
    worker.build(rows=50, batch=16, threads=1, model="dlrm")
    worker.warm_up(sample_seconds=0.0)
    assert all(worker.sample(kind)["value"] > 0 for kind in ("trainer", "loop", "parquet"))
    split = worker.split(1)
    assert split["sparse_ms"] > 0
    assert split["dense_ms"] > 0


@pytest.mark.dist
def test_the_systems_are_compared_in_processes(capsys: pytest.CaptureFixture[str]) -> None:
    rules = Rules(num_runs=2, sample_seconds=0.0, max_discards=0)
    dlrm.Comparison(("monolith", "dense"), SMALL, rules).run()
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in capsys.readouterr().out.splitlines()
    ]
    assert [line["system"] for line in lines] == ["monolith", "dense", "loop", "parquet"]
    assert {line["name"] for line in lines} == {"dlrm"}
    assert lines[0]["ratios"].keys() == {"dense", "loop", "parquet"}
