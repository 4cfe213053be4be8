"""`monolith train --stream`: its options, what it prints, a resume, and ends by signals."""

import json
import signal
import subprocess
import sys
import time

import pytest

from monolith.checkpoint import find
from tests.cli.run import run
from tests.data.stream.broker_process import running
from tests.forker import limited

TASK = """
import torch
import monolith as ml

COLUMNS = ml.data.Columns(["user", "item"], labels=["click"], time="time")


class Clicks(ml.Task):
    features = (ml.Feature("user", dim=2), ml.Feature("item", dim=2))
    label = "click"

    def source(self, mode):
        samples = ml.data.jsonl(self.settings.data[mode], columns=COLUMNS)
        return samples.batch(self.settings.batch_size)

    def build(self):
        return torch.nn.Linear(4, 1)

    def loss(self, model, inputs, batch):
        logit = model(inputs.pooled.joined).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, batch.label)
        return loss, logit.sigmoid()
"""
NOW = 1_700_000_000


def write(folder, name, number, first=0):
    folder.mkdir(exist_ok=True)
    with open(folder / name, "a") as file:
        for i in range(first, first + number):
            row = {"user": i % 7, "item": i % 5, "click": i % 2, "time": NOW + i // 8}
            file.write(json.dumps(row) + "\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with a task and a stream of 32 samples."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.py").write_text(TASK)
    write(tmp_path / "stream", "a.jsonl", 32)
    return tmp_path


@pytest.fixture
def train(capsys, monkeypatch, folder):
    """Train 4 batches of 8 samples of the stream, with more options."""

    def call(*options, steps=4, stream="tail:stream"):
        sizes = ("--set", f"train.steps={steps}", "--set", "batch_size=8")
        where = () if stream is None else ("--stream", stream)
        return run(capsys, monkeypatch, "train", "clicks.py", *where, *sizes, *options)

    return call


def lines_of(ran):
    return [json.loads(line) for line in ran.out.splitlines()]


def test_a_task_is_trained_on_a_stream(train):
    ran = train()
    assert ran.status == 0
    assert "data.train = 'tail:stream'" not in ran.err
    assert "reading jsonl: tail of " in ran.err
    assert "4 steps, 32 samples in" in ran.err


def test_the_status_line_says_how_old_the_newest_event_is(train):
    assert " s ago, " in train().err


def test_a_stream_is_scored_by_windows(train):
    ran = train("--set", "train.score_samples=16")
    assert "last window of 16: AUC 0." in ran.err
    last = lines_of(train("--set", "train.score_samples=16", "--json"))[-1]["figures"]
    assert (last["windows"]["samples"]["number"], last["windows"]["samples"]["num_samples"]) == (
        1,
        16,
    )
    assert last["stream"]["freshness_seconds"] > 0


def test_a_stream_has_windows_of_its_own_accord(train, folder):
    train("--metrics-file", "metrics.jsonl", "--set", "train.score_seconds=1")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    def values(name):
        gauges = [line["gauges"] for line in lines if "gauges" in line]
        return [gauge[name] for gauge in gauges if name in gauge]

    assert values("progressive/samples/window=time") == [8.0, 8.0, 8.0]
    assert values("stream/freshness_seconds")[-1] > 0
    assert values("stream/bad")[-1] == 0


def test_a_resumed_run_goes_on_in_the_stream(train, folder):
    assert train("--checkpoints", "saves", steps=2).status == 0
    ran = train("--checkpoints", "saves", "--resume", "--json", steps=4)
    assert "resumed at step 2" in ran.err
    assert lines_of(ran)[-1]["num_samples"] == 16


def test_files_come_before_the_stream(train, folder):
    write(folder / "files", "a.jsonl", 16)
    ran = train("--backfill", "files", "--json", steps=6)
    assert ", then jsonl: tail of " in ran.err
    assert lines_of(ran)[-1]["num_samples"] == 48


def test_a_model_that_learned_from_files_goes_on_with_a_stream(train, folder):
    write(folder / "files", "a.jsonl", 16)
    ran = train("--data", "files", "--checkpoints", "saves", steps=2, stream=None)
    assert ran.status == 0, ran.err
    ran = train("--checkpoints", "saves", "--resume", "--json", steps=6)
    assert lines_of(ran)[-1]["num_samples"] == 32


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--stream", "clicks/"), "expected tail:FOLDER, or kafka://HOST:PORT/TOPIC"),
        (("--stream", "kafka://broker/clicks"), "expected HOST:PORT after kafka://, got 'broker'"),
        (("--stream", "kafka://broker:9092"), "expected a topic after kafka://broker:9092/"),
        (("--stream", "tail:a", "--data", "b"), "expected --stream or --data PATH, got both"),
        (("--stream", "tail:a", "--data", "train=b"), "files before it: --backfill PATH"),
        (("--stream", "tail:a", "--backfill", "tail:b"), "expected files as --backfill, got the"),
        (("--stream", "tail:a", "--batch-seconds", "0"), "expected --batch-seconds above 0"),
        (("--stream", "tail:a", "--stream-start", "latest"), "expected earliest as the start of"),
        (
            ("--stream", "kafka://a:1/t", "--stream-start", "latest", "--backfill", "b"),
            "expected --stream-start earliest or a time with --backfill, got latest",
        ),
        (("--stream", "kafka://a:1/t?start=soon"), "expected a start of earliest, latest"),
        (("--stream", "tail:a", "--mode", "sync"), "expected no --stream with --mode sync"),
        (("--stream", "tail:a", "--data-service", "a:1"), "--stream or --data-service, got both"),
        (("--backfill", "a"), "expected --stream URI with --backfill, got none"),
        (("--stream-start", "latest"), "expected --stream URI with --stream-start, got none"),
        (("--batch-seconds", "1"), "expected --stream URI with --batch-seconds, got none"),
    ],
)
def test_options_that_do_not_fit_are_refused(capsys, monkeypatch, folder, options, text):
    ran = run(capsys, monkeypatch, "train", "clicks.py", *options)
    assert ran.status == 2
    assert text in ran.err
    assert ran.out == ""


def test_a_folder_that_is_not_there_is_told(train):
    ran = train(stream="tail:nowhere")
    assert ran.status == 1
    assert "expected a local folder, got 'nowhere'" in ran.err


def test_a_task_that_does_not_read_its_settings_is_told(train, folder):
    text = TASK.replace("self.settings.data[mode]", "'stream/a.jsonl'")
    (folder / "clicks.py").write_text(text)
    ran = train()
    assert ran.status == 1
    assert "[Clicks.source] expected a pipeline that reads 'tail:stream'" in ran.err


@pytest.mark.dist
def test_a_task_is_trained_on_messages(train):
    with running() as broker:
        topic = broker.topic(2)
        row = {"user": 1, "item": 2, "click": 1, "time": NOW}
        for partition in (0, 1):
            broker.send(topic, *[json.dumps(row).encode()] * 12, partition=partition)
        uri = f"kafka://{broker.servers}/{topic}"
        ran = train("--checkpoints", "saves", stream=uri, steps=2)
        assert ran.status == 0, ran.err
        assert f"reading kafka: {topic}, json; Ctrl-C" in ran.err
        again = train("--checkpoints", "saves", "--resume", "--json", stream=uri, steps=3)
        assert lines_of(again)[-1]["num_samples"] == 8


def wait_until(is_true, process, seconds=120):
    limit = time.monotonic() + seconds
    while not is_true():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("number", "status", "prefetch"), [(signal.SIGINT, 130, 0), (signal.SIGTERM, 143, 2)]
)
def test_a_run_that_waits_saves_by_time_and_ends_by_a_signal(folder, number, status, prefetch):
    command = ["train", "clicks.py", "--stream", "tail:stream", "--checkpoints", "saves"]
    command += ["--save-seconds", "0.1", "--set", "batch_size=16"]
    command += ["--set", f"train.prefetch={prefetch}"]
    with (
        subprocess.Popen(
            [sys.executable, "-m", "monolith", *command], stderr=subprocess.PIPE, text=True
        ) as process,
        limited(process.kill),
    ):
        try:
            wait_until(lambda: find(folder / "saves") is not None, process)
            write(folder / "stream", "b.jsonl", 5)  # a batch that time ends
            wait_until(lambda: find(folder / "saves").step == 3, process)
            process.send_signal(number)
            text = process.stderr.read()
            assert process.wait(60) == status
        finally:
            process.kill()
    assert "after step 3, which was finished" in text
    assert "to go on: monolith train clicks.py --stream tail:stream" in text
