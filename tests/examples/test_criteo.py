import math

import pyarrow as pa
import pytest
import torch

import monolith as ml
from examples.criteo import COUNTS, IDS, Criteo
from monolith.errors import DataLossError
from tests.examples.losses import losses_of


def line(label, counts, ids):
    """A line as published; None is missing."""
    cells = [label, *counts, *ids]
    return "\t".join("" if cell is None else str(cell) for cell in cells) + "\n"


FIRST = line(0, [1, 1, 5, 0, 1382, 4, 15, 2, 181, 1, 2, None, 2],
             ["68fd1e64", "80e26c9b", *["fb936136"] * 23, None])  # fmt: skip
SECOND = line(1, [None, -1, *range(11)], ["68fd1e64"] * 26)


def task(path, **settings):
    data = {"train": str(path), "eval": str(path), "predict": str(path)}
    return Criteo(ml.TaskSettings(data=data, **settings))


@pytest.fixture
def batch(tmp_path):
    (tmp_path / "train.txt").write_text(FIRST + SECOND)
    (batch,) = task(tmp_path / "train.txt").source(ml.Mode.EVAL)
    return batch


def test_labels_are_clicks(batch):
    assert batch.label.tolist() == [0, 1]


def test_counts_are_logarithms_and_missing_ones_zero(batch):
    assert [batch.dense[name][0].item() for name in (COUNTS[4], COUNTS[11])] == [
        pytest.approx(math.log(1383)),
        0,
    ]
    assert [batch.dense[name][1].item() for name in COUNTS[:4]] == [
        0,
        0,
        0,
        pytest.approx(math.log(2)),
    ]


def test_categories_are_hashed_and_missing_ones_empty(batch):
    known = ml.data.hash_strings(pa.array(["68fd1e64", "80e26c9b"])).tolist()
    assert batch.features[IDS[0]].to_lists() == [[known[0]], [known[0]]]
    assert batch.features[IDS[1]].to_lists() == [[known[1]], [known[0]]]
    assert batch.features[IDS[25]].to_lists() == [[], [known[0]]]


def test_all_files_of_a_pattern_are_read(tmp_path):
    for day in range(3):
        (tmp_path / f"day_{day}").write_text(FIRST * (day + 1))
    assert [len(batch) for batch in task(tmp_path / "day_*").source(ml.Mode.TRAIN)] == [6]


def test_the_test_file_has_no_labels(tmp_path):
    (tmp_path / "test.txt").write_text(FIRST[2:] + SECOND[2:])
    ranker = task(tmp_path / "test.txt")
    (output,) = ml.Trainer(ranker).predict()
    assert output.prediction.shape == (2,)
    assert torch.equal(output.prediction, output.prediction.clamp(0, 1))


def test_it_learns_which_ids_are_clicked(tmp_path):
    ids = [f"{number * 2654435761 % 2**32:08x}" for number in range(26)]
    lines = [line(n % 2, [n] * 13, ids[n:] + ids[:n]) for n in range(13)]
    (tmp_path / "train.txt").write_text("".join(lines) * 300)
    losses = losses_of(ml.Trainer(task(tmp_path / "train.txt", batch_size=64)))
    assert losses[0] == pytest.approx(math.log(2), abs=0.05)
    assert sum(losses[-5:]) / 5 < 0.4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\t2\t3\n", "line 1: .*Expected 40 columns, got 3"),
        (FIRST + SECOND.replace("-1", "x"), "line 2: column 'count_2': .*'x'"),
        (FIRST + "2" + FIRST[1:], "sample 1 .*: expected a label from 0 to 1 .*, got 2"),
    ],
)
def test_a_bad_line_is_named(tmp_path, text, message):
    (tmp_path / "train.txt").write_text(text)
    with pytest.raises(DataLossError, match=r"train\.txt', " + message):
        list(task(tmp_path / "train.txt").source(ml.Mode.TRAIN))
