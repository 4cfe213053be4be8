import math

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from monolith.data import Batch
from monolith.errors import NonFiniteLossError
from monolith.train import Trainer, TrainSettings
from tests.train.tasks import Clicks, Counting, clicks, state_of


def with_bad(number=3, **columns):
    """Return batches, the last of which has an hour that is not a number."""
    *good, last = clicks(number, **columns)
    dense = {"hour": torch.tensor([math.nan] + [0.5] * 7), "size": torch.ones(8, 2)}
    return [*good, Batch(last.features, dense, last.labels, last.weight, last.time)]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_loss_that_is_not_finite_stops_before_anything_is_stepped(accumulate):
    batches = with_bad()
    settings = TrainSettings(accumulate=accumulate)
    with Trainer(Clicks(batches), settings, clock=lambda: 1) as trainer:
        with pytest.raises(NonFiniteLossError) as error:
            trainer.fit()
        step = 2 // accumulate
        assert error.value.step == trainer.run.global_step == step
        with Trainer(Clicks(batches[: step * accumulate]), settings, clock=lambda: 1) as good:
            good.fit()
            assert state_of(trainer) == state_of(good)
        assert trainer.features.tables["user"].stats()["num_skipped"] == 0
    assert error.value.batch is batches[2]
    assert error.value.path is None
    assert str(error.value) == (
        f"[Trainer.fit] expected a finite loss, got nan in step {step}; nothing was stepped with "
        "it, error.batch has the samples"
    )


def test_updates_of_the_steps_before_it_are_made_also_on_their_thread():
    class Broken(Counting):
        def loss(self, model, inputs, batch):
            loss, prediction = super().loss(model, inputs, batch)
            return loss / (len(self.seen) < 3), prediction

    with Trainer(Broken(), TrainSettings(push=1)) as trainer:
        with pytest.raises(NonFiniteLossError):
            trainer.fit()
        assert trainer.features.tables["id"].lookup(torch.tensor([7])).item() == -2


def test_training_goes_on_after_it():
    with Trainer(Clicks(with_bad())) as trainer:
        with pytest.raises(NonFiniteLossError):
            trainer.fit()
        assert trainer.fit(clicks(2)).num_steps == 2


def test_the_batch_is_written_where_there_is_a_folder(tmp_path):
    weight, time = torch.ones(8), torch.arange(8)
    batches = with_bad(weight=weight, time=time)
    settings = TrainSettings(keep_dir=tmp_path / "kept")
    with Trainer(Clicks(batches), settings) as it, pytest.raises(NonFiniteLossError) as error:
        it.fit()
    path = tmp_path / "kept" / "non_finite_loss_2.parquet"
    assert str(error.value).endswith(f"nothing was stepped with it, the samples are in {path}")
    assert error.value.path == str(path)
    table = pq.read_table(path)
    assert table["user"].to_pylist() == batches[2].features["user"].to_lists()
    assert table["click"].to_pylist() == batches[2].label.tolist()
    assert table["size"].to_pylist() == [[1.0, 1.0]] * 8
    assert math.isnan(table["hour"][0].as_py())
    assert (table["weight"].to_pylist(), table["time"].to_pylist()) == ([1.0] * 8, list(range(8)))
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_batch_is_written_to_a_store(tmp_path):
    folder = f"memory://kept-{tmp_path.name}"
    text = f"the samples are in {folder}/"
    with (
        Trainer(Clicks(with_bad()), TrainSettings(keep_dir=folder)) as trainer,
        pytest.raises(NonFiniteLossError, match=text) as error,
    ):
        trainer.fit()
    assert error.value.path == f"{folder}/non_finite_loss_2.parquet"
    table = pq.read_table(pa.BufferReader(fsspec.open(error.value.path).open().read()))
    assert table["user"].to_pylist() == with_bad()[2].features["user"].to_lists()


def test_a_batch_that_cannot_be_written_does_not_hide_the_loss(tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "kept"
    with (
        Trainer(Clicks(with_bad()), TrainSettings(keep_dir=str(folder))) as trainer,
        pytest.raises(NonFiniteLossError, match=f"they are not in {folder}: ") as error,
    ):
        trainer.fit()
    assert error.value.path is None
    assert len(error.value.batch) == 8
