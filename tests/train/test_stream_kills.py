"""A run on a stream that is killed under load trains every sample once, as its model says."""

import json
import os
import random
import signal
import threading
import time

import pytest
import torch

from monolith.checkpoint import load
from monolith.table.reference import ReferenceTable
from tests.forker import started
from tests.suites.table_base import assert_equal_rows, exported
from tests.train.stream_run import history, trained

pytestmark = pytest.mark.dist

NUM_FILES = 3


@pytest.fixture(scope="module")
def runner():
    with started("tests.train.stream_run") as process:
        yield process


class Producer:
    """Appends samples to files from a thread until all are there or the block ends."""

    def __init__(self, folder, total, seconds):
        self._folder, self._total, self._seconds = folder, total, seconds
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)

    def _produce(self):
        numbers = random.Random(1)
        for number in range(self._total):
            sample = {
                "user": numbers.randint(0, 40),
                "number": number,
                "gradient": round(numbers.uniform(-1, 1), 3),
                "time": 1_700_000_000 + number,
            }
            text = json.dumps(sample) + "\n"
            cut = numbers.randint(0, len(text))  # lines come in two parts
            for part in (text[:cut], text[cut:]):
                with open(self._folder / f"{number % NUM_FILES}.jsonl", "a") as file:
                    file.write(part)
            if number % 10 == 0 and self._is_over.wait(self._seconds):
                return

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *error):
        self._is_over.set()
        self._thread.join(60)


def run(runner, directory, total, prefetch, kill_after=None, seconds=0.0):
    """Train; kill the child some seconds after step number `kill_after` of it."""
    runner.stdin.write(f"{directory} {total} {prefetch}\n")
    child, num_steps = None, 0
    while (line := runner.stdout.readline().strip()) != "ended":
        word, number = line.split()
        child = int(number) if word == "child" else child
        num_steps += word == "step"
        if child is not None and kill_after is not None and num_steps >= kill_after:
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
            kill_after = None


def assert_replayed(directory, steps):
    """Check the tables of the last checkpoint by the samples of the steps that count."""
    checkpoint = load(directory / "saved")
    assert checkpoint.step == len(steps)
    for name, table in checkpoint.load_tables().items():
        reference = ReferenceTable(table.config)
        for users, numbers, gradients, times in steps:
            keys = torch.tensor(users if name == "user" else numbers)
            grads = torch.tensor(gradients).unsqueeze(1).expand(-1, 2).contiguous()
            reference.apply_gradients(keys, grads, now=max(times))
        assert_equal_rows(exported(table), exported(reference))


def check(runner, path, num_kills, prefetch, seed, total):
    numbers = random.Random(seed)
    (path / "data").mkdir(parents=True)
    with Producer(path / "data", total, seconds=0.01):
        for _ in range(num_kills):
            steps = numbers.randint(1, max(2, total // 16 // (num_kills + 1)))
            run(runner, path, total, prefetch, steps, numbers.uniform(0, 0.02))
        run(runner, path, total, prefetch)
    steps = history(path / "order.txt")
    assert sorted(trained(steps)) == list(range(total))
    assert_replayed(path, steps)


@pytest.mark.req("RT-T1")
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_run_that_was_killed_trains_every_sample_once(runner, tmp_path, prefetch):
    check(runner, tmp_path, num_kills=3, prefetch=prefetch, seed=prefetch, total=400)


@pytest.mark.slow
@pytest.mark.req("RT-T1")
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_run_that_was_killed_twenty_times_trains_every_sample_once(runner, tmp_path, prefetch):
    check(runner, tmp_path, num_kills=20, prefetch=prefetch, seed=prefetch, total=6_000)
