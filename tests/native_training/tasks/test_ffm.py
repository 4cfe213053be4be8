import itertools
import json

import pytest
from tensorboard.compat.tensorflow_stub import errors
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

from monolith.native_training.tasks import ffm, local_train
from monolith.native_training.tasks.task_context import NativeTaskContext, with_ctx
from monolith.train import Trainer, TrainSettings


def records_of(ratio, *, enabled=True, steps=50):
    """Return the records of a run of 64 samples a step, at a new time in each step."""
    names = {"enable_deep_insight": enabled, "deep_insight_sample_ratio": ratio}
    params = ffm.FFMParams().task().set(**{f"metrics.{name}": v for name, v in names.items()})
    task, records = params.instantiate(), []
    task.deep_insight_sink, task.clock = records.append, itertools.count(1).__next__
    with Trainer(task, TrainSettings(steps=steps)) as trainer:
        trainer.fit()
    return [json.loads(record) for record in records]


@pytest.mark.req("NT-MODEL-T5")
def test_records_are_sent_at_the_sample_ratio():
    assert len(records_of(1.0)) == 64 * 50
    assert len(records_of(0.25)) == pytest.approx(64 * 50 / 4, rel=0.1)
    assert records_of(0.25) == records_of(0.25)


@pytest.mark.req("NT-MODEL-T5")
def test_without_deep_insight_nothing_is_sent():
    assert records_of(1.0, enabled=False) == records_of(0.0) == []


@pytest.mark.req("NT-MODEL-T5")
def test_a_record_has_model_time_user_label_and_prediction():
    record = records_of(1.0, steps=1)[3]
    assert record.pop("predict")["ctr_head"] == pytest.approx(0.5)  # all ids read zeros
    assert record == {
        "model_name": "di_name_FFMTask",
        "req_time": record["req_time"],
        "uid": 3,
        "label": {"ctr_head": 0.0},
        "sample_rate": {"ctr_head": 1.0},
    }


@pytest.mark.req("NT-MODEL-T5")
def test_records_of_no_samples_need_no_receiver():
    params, metrics = ffm.FFMParams().task(), {"enable_deep_insight": True}
    params.metrics.set(**metrics, deep_insight_sample_ratio=0.0)
    with Trainer(params.instantiate(), TrainSettings(steps=1)) as trainer:
        assert trainer.fit().num_steps == 1


@pytest.mark.req("NT-MODEL-T5")
def test_records_that_nothing_receives_are_refused():
    params = ffm.FFMParams().task().set(**{"metrics.enable_deep_insight": True})
    text = (
        r"expected a receiver of the records of params.metrics.enable_deep_insight=True, got none"
    )
    with (
        Trainer(params.instantiate(), TrainSettings(steps=1)) as trainer,
        pytest.raises(ValueError, match=text),
    ):
        trainer.fit()


@pytest.mark.req("NT-MODEL-T5")
def test_records_go_to_files_of_lines_and_of_tfrecords(tmp_path):
    params = ffm.FFMParams().task()
    params.metrics.set(
        enable_deep_insight=True,
        deep_insight_sample_ratio=1.0,
        enable_file_metrics=True,
        file_base_name=str(tmp_path / "lines"),
        dump_filename=str(tmp_path / "dump.tfrecord"),
    )
    task = params.instantiate()
    task.clock = lambda: 1664236800
    context = with_ctx(NativeTaskContext(num_workers=4, worker_index=3))
    with context, Trainer(task, TrainSettings(steps=2)) as trainer:
        trainer.fit()
    (file,) = (tmp_path / "lines").rglob("part_*")
    folder = tmp_path / "lines/di_name_FFMTask/20220927/worker_3"
    assert file == folder / "part_000000.txt"
    lines = file.read_text().splitlines()
    assert len(lines) == 128
    assert lines[3].startswith('1664236800;;3;{"ctr_head": 0.5};{"ctr_head": ')
    reader = PyRecordReader_New(str(tmp_path / "dump.tfrecord"))
    for user in [*range(64)] * 2:
        reader.GetNext()
        assert json.loads(reader.record())["uid"] == user
    with pytest.raises(errors.OutOfRangeError):
        reader.GetNext()


def test_only_training_goes_on_without_end():
    task = ffm.FFMParams().task().instantiate()
    assert len(list(task.source("eval"))) == 1
    assert len([*zip(range(3), task.source("train"), strict=False)]) == 3


def test_without_a_batch_size_all_examples_are_one_batch():
    task = ffm.FFMTask.params().instantiate()
    assert len(next(task.source("eval"))) == 64


def test_functions_of_the_parameters_write_the_files(tmp_path):
    params = ffm.FFMParams().task()
    params.metrics.set(
        enable_deep_insight=True,
        deep_insight_sample_ratio=1.0,
        deep_insight_target="other",
        enable_file_metrics=True,
        file_base_name=str(tmp_path),
        file_ext="log",
        parse_fn=lambda text: {"heads": sorted(json.loads(text)["predict"])},
        key_fn=lambda record, worker, base: f"{base}/mine-{worker}",
        layout_fn=lambda record: ",".join(record["heads"]),
    )
    with local_train(params, steps=1):
        pass
    (file,) = (tmp_path / "mine-0").iterdir()
    assert file.name == "part_000000.log"
    assert file.read_text().splitlines() == ["other"] * 64
