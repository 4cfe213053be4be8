"""A run over a folder that gets files trains every record once, also after stops and kills.

The row of a record is minus the number of times that the record was trained.
"""

import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith.checkpoint import load
from monolith.cli.tasks.task_file import load_task_class
from monolith.train import TaskSettings, Trainer, TrainSettings
from tests.forker import limited
from tests.train.tasks import StopAfter

TASK = """
import torch
import monolith as ml
from monolith.table import Zeros

class Count(ml.Task):
    features = (ml.Feature("record", dim=1, optimizer=ml.SGD(1.0), initializer=Zeros()),)

    def source(self, mode):
        samples = ml.data.parquet(self.settings.data[mode])
        return samples.STAGES.batch(self.settings.batch_size)

    def build(self):
        return torch.nn.Identity()

    def metrics(self):
        return {}

    def loss(self, model, inputs, batch):
        print("in a step", flush=True)
        value = inputs.pooled["record"].squeeze(1)
        return value.sum(), value
"""
NUM_RECORDS = 50  # of a file; no multiple of the batches


def add(folder, day):
    folder.mkdir(exist_ok=True)
    first = day * 1_000
    rows = {"record": range(first, first + NUM_RECORDS), "label": [0.0] * NUM_RECORDS}
    pq.write_table(pa.table(rows), folder / f"day-{day}.parquet", row_group_size=20)


def write_task(folder, stages="shuffle(64)"):
    (folder / "count.py").write_text(TASK.replace("STAGES", stages))
    return folder / "count.py"


def times_trained(directory):
    """Return how often each record was trained, by the rows of the last checkpoint."""
    (chunk,) = load(directory).load_tables()["record"].export()
    (values,) = chunk.columns.values()
    return dict(zip(chunk.keys.tolist(), (-values.squeeze(1)).tolist(), strict=True))


def once(*days, times=1.0):
    return {day * 1_000 + i: times for day in days for i in range(NUM_RECORDS)}


def train(path, folder, directory, hooks=(), **settings):
    """Train in this process to the end of the data, from the newest checkpoint if there is one."""
    task = load_task_class(str(path))(TaskSettings({"train": str(folder)}, batch_size=8))
    how = TrainSettings(checkpoint_dir=str(directory), **settings)
    with Trainer(task, how) as trainer:
        if directory.exists():
            trainer.restore(directory)
        return trainer.fit(hooks=hooks)


@pytest.mark.parametrize("settings", [{}, {"prefetch": 2, "push": 1}])
@pytest.mark.parametrize(
    ("stages", "times"),
    [("shuffle(64)", 1), ("shuffle_files(1).interleave(2).prefetch(2)", 1),
     ("shuffle_files(3).shuffle(30).repeat(2)", 2)],
)  # fmt: skip
def test_a_run_that_was_stopped_trains_old_and_new_files_once(tmp_path, settings, stages, times):
    path, folder, run = write_task(tmp_path, stages), tmp_path / "clicks", tmp_path / "run"
    add(folder, 1)
    add(folder, 2)
    assert train(path, folder, run, [StopAfter(5)], **settings).ended == "stopped"
    add(folder, 0)
    assert train(path, folder, run, [StopAfter(20)], **settings).ended in ("stopped", "end of data")
    add(folder, 3)
    assert train(path, folder, run, **settings).ended == "end of data"
    assert times_trained(run) == once(0, 1, 2, 3, times=times)


def test_a_run_that_ended_trains_exactly_the_new_file(tmp_path):
    path, folder, run = write_task(tmp_path), tmp_path / "clicks", tmp_path / "run"
    add(folder, 1)
    for day in (2, 3):
        assert train(path, folder, run).ended == "end of data"
        assert train(path, folder, run).num_steps == 0
        add(folder, day)
    (folder / "day-1.parquet").unlink()
    result = train(path, folder, run)
    assert (result.num_steps, result.num_samples) == (7, NUM_RECORDS)
    assert times_trained(run) == once(1, 2, 3)


def command(path, folder, run, *flags):
    words = [path, "--data", folder, "--checkpoints", run, "--set", "batch_size=8", *flags]
    return [sys.executable, "-m", "monolith.cli.main", "train", *map(str, words)]


@pytest.mark.dist
@pytest.mark.parametrize("num_steps", [4, 9, 13])
def test_a_killed_run_goes_on_with_old_and_new_files(tmp_path, num_steps):
    path, folder, run = write_task(tmp_path), tmp_path / "clicks", tmp_path / "run"
    add(folder, 1)
    add(folder, 2)
    waits = ("--set", "train.background_saves=false")  # for each save, before the next step
    first = command(path, folder, run, "--save-every", 3, *waits)
    with subprocess.Popen(first, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        with limited(process.kill):
            for _ in range(num_steps):
                process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert sum(times_trained(run).values()) <= 8 * num_steps
    add(folder, 3)
    again = command(path, folder, run, "--resume")
    ran = subprocess.run(again, capture_output=True, text=True, check=True)
    assert times_trained(run) == once(1, 2, 3)
    assert (
        "[data] 1 new file since the saved position, read after 2 old files: "
        f"{folder}/day-3.parquet\n"
    ) in ran.stderr
