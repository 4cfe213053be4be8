import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import monolith as ml
from examples.dlrm import BOTTOM, TOP, Dlrm, Ranker
from tests.examples.losses import losses_of


def write(path, num_samples):
    """Parquet, as the program takes it; the label follows one id."""
    torch.manual_seed(0)
    one = torch.arange(num_samples) % 7
    columns = {f"feature_{i}": (one if i == 3 else one * 0 + i).numpy() for i in range(26)}
    columns |= {f"dense_{i}": torch.rand(num_samples).numpy() for i in range(13)}
    pq.write_table(pa.table({**columns, "label": (one % 2).float().numpy()}), path)
    return str(path)


def test_the_layers_are_those_of_the_paper():
    assert (BOTTOM, TOP) == ((13, 512, 256, 64, 16), (367, 512, 256, 1))


def test_the_top_sees_each_pair_of_vectors_once():
    model, dense, rows = Dlrm(), torch.rand(2, 13), torch.rand(2, 26 * 16)
    numbers = model.bottom(dense)
    vectors = [numbers, *rows.split(16, 1)]
    dots = [(vectors[i] * vectors[j]).sum(1) for i in range(27) for j in range(i)]
    expected = model.top(torch.cat([numbers, torch.stack(dots, 1)], 1)).squeeze(1)
    torch.testing.assert_close(model(dense, rows), expected)


def test_it_learns_from_parquet(tmp_path):
    path = write(tmp_path / "logs.parquet", 4000)
    settings = ml.TaskSettings(data={"train": path}, batch_size=50)
    losses = losses_of(ml.Trainer(Ranker(settings)))
    assert len(losses) == 80
    assert losses[-1] < 0.3 < 0.6 < losses[0]


def test_without_a_path_samples_are_made_up():
    ranker = Ranker(ml.TaskSettings(batch_size=10))
    train, other = (next(iter(ranker.source(mode))) for mode in (ml.Mode.TRAIN, ml.Mode.EVAL))
    assert len(train) == 10
    assert not torch.equal(train.features["feature_0"].values, other.features["feature_0"].values)


def test_with_a_path_to_train_on_nothing_is_made_up():
    ranker = Ranker(ml.TaskSettings(data={"train": "logs"}))
    with pytest.raises(ValueError, match=r"\[Ranker\] expected a path of data for eval, got train"):
        ranker.source(ml.Mode.EVAL)
