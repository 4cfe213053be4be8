"""A trainer lets a pipeline read the columns that the task names or the pipeline declares."""

import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from monolith import data
from monolith.errors import InvalidArgumentError
from monolith.nn import Feature
from monolith.train import Task, Trainer
from monolith.train.inputs import TaskColumns
from tests.train.tasks import state_of

ROWS = {
    "user": range(64),
    "item": [i % 5 for i in range(64)],
    "hour": [i / 64 for i in range(64)],
    "click": [float(i % 2) for i in range(64)],
    "label": [0.0] * 64,
    "instance_weight": [1.0] * 64,
    "extra": [2.0] * 64,
    "other": range(64),
}


class Wide(Task):
    """A task that names four of many columns."""

    features = (Feature("user", dim=2), Feature("item", dim=2))
    dense, label = ("hour",), "click"

    def __init__(self, path, **options):
        super().__init__()
        self.path, self.options = path, options

    def source(self, mode):
        return data.parquet(self.path, **self.options).batch(16)

    def build(self):
        return torch.nn.Linear(5, 1)

    def loss(self, model, inputs, batch):
        logit = model(inputs.matrix).squeeze(1)
        click = batch.labels["click"] if "click" in batch.labels else torch.zeros(len(batch))
        return torch.nn.functional.binary_cross_entropy_with_logits(logit, click), logit.sigmoid()


class Reading(Wide):
    """A task whose loss reads a column that `features`, `dense` and `label` do not name."""

    def loss(self, model, inputs, batch):
        loss, prediction = super().loss(model, inputs, batch)
        return loss * batch.dense["extra"].mean(), prediction


@pytest.fixture
def path(tmp_path):
    more = {f"c{i}": [0.5] * 64 for i in range(20)}
    pq.write_table(pa.table({**more, **ROWS}), tmp_path / "wide.parquet")
    return tmp_path / "wide.parquet"


@pytest.fixture
def decoded(monkeypatch):
    """Sets of columns that were read from Parquet files."""
    seen, original = [], pq.ParquetFile.iter_batches

    def note(*arguments, **options):
        seen.append(set(options["columns"]))
        return original(*arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", note)
    return seen


NAMED = {"user", "item", "hour", "click", "instance_weight"}


def test_fit_evaluation_and_prediction_read_what_the_task_names(path, decoded):
    with Trainer(Wide(path)) as trainer:
        assert trainer.fit().num_steps == 4
        trainer.evaluate()
        assert len(list(trainer.predict())) == 4
    assert decoded == [NAMED] * 3


def test_samples_without_labels_are_predicted_from_what_the_task_names(tmp_path, decoded):
    rows = {name: values for name, values in ROWS.items() if name not in ("click", "label")}
    pq.write_table(pa.table(rows), tmp_path / "new.parquet")
    with Trainer(Wide(tmp_path / "new.parquet")) as trainer:
        assert len(list(trainer.predict())) == 4
    assert decoded == [NAMED - {"click"}]


def test_fewer_columns_train_the_same(path):
    states = []
    for columns in ((), None):
        task = Wide(path)
        task.columns = columns
        with Trainer(task) as trainer:
            trainer.fit()
            states.append(state_of(trainer))
    assert states[0] == states[1]


def test_a_loss_that_reads_another_column_is_told_how_to_declare_it(path):
    text = (
        "[Batch] expected a column that is read, got 'extra', which was left out because nothing "
        "names it; add it to `columns` of the task, or to the names of Pipeline.select"
    )
    with (
        Trainer(Reading(path)) as trainer,
        pytest.raises(InvalidArgumentError, match=f"^{re.escape(text)}$"),
    ):
        trainer.fit()


@pytest.mark.parametrize("columns", [["extra"], "extra", None])
def test_a_loss_reads_further_columns_that_the_task_names(path, decoded, columns):
    task = Reading(path)
    task.columns = columns
    with Trainer(task) as trainer:
        assert trainer.fit().num_steps == 4
    read = {*NAMED, "extra"} if columns is not None else {*pq.read_schema(path).names}
    assert decoded[0] == read


def test_columns_that_the_source_declares_are_read(path, decoded):
    declared = data.Columns(["user", "item"], ["hour", "extra"], ["click"])
    with Trainer(Reading(path, columns=declared)) as trainer:
        assert trainer.fit().num_steps == 4
    assert decoded == [{"user", "item", "hour", "click", "extra"}]


def test_columns_of_a_stage_before_the_batch_are_read(path, decoded):
    class Filtering(Wide):
        def source(self, mode):
            above = data.operations.FilterByValue("extra", "gt", 1)
            return data.parquet(self.path).filter(above).batch(16)

    with Trainer(Filtering(path)) as trainer:
        assert trainer.fit().num_steps == 4
    assert decoded == [{*NAMED, "extra"}]


def test_a_further_column_that_the_source_lacks_is_refused(path):
    task = Reading(path)
    task.columns = ["extr"]
    text = r"^\[Task.columns\] expected columns of the source, .*, got 'extr'; did you mean 'extra'"
    with Trainer(task) as trainer, pytest.raises(InvalidArgumentError, match=text):
        trainer.fit()


@pytest.mark.parametrize(
    ("change", "text"),
    [({"features": (Feature("usr", dim=2),)}, "expected ids of usr, got those of"),
     ({"label": "clicked"}, "expected column 'clicked' in the batch, got user"),
     ({"dense": ("hours",)}, "expected column 'hours' in the batch, got user")],
)  # fmt: skip
def test_a_column_of_the_model_that_is_missing_is_told_with_all_columns(path, change, text):
    task = type("Wrong", (Wide,), change)(path)
    with Trainer(task) as trainer, pytest.raises(ValueError, match=f"{text}.*other"):
        trainer.fit()


def test_sources_that_leave_no_choice_stay_as_they_are(path):
    columns = TaskColumns(["click"], ["hour"], ["user", "item"])
    named = data.parquet(path, columns=data.Columns(["user", "item"], ["hour"], ["click"]))
    for source in ([1, 2], named):
        assert columns.select(source) is source
    assert columns.select(columns.select(data.parquet(path))).columns.names() == [
        "user", "item", "hour", "click", "instance_weight",
    ]  # fmt: skip
