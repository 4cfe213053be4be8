import functools
import json
import re
import shlex
import signal
import subprocess
import sys

import pytest

from monolith.checkpoint import existing_checkpoints, load
from monolith.checkpoint.run_lock import only_run
from monolith.cli.options.resume_options import words_of_saves
from monolith.train.run_metrics import SaveCounts
from tests.cli.run import run
from tests.cli.test_train import TASK, task
from tests.forker import limited

pytestmark = pytest.mark.thorough

__all__ = ["task"]


@pytest.fixture
def monolith(capsys, monkeypatch):
    return functools.partial(run, capsys, monkeypatch)


@pytest.fixture
def train(monolith, task, tmp_path):
    """Train with checkpoints: a call with the number of steps and more options."""
    path, data = task
    flags = ("--data", data, "--checkpoints", tmp_path / "run", "--save-every", "2")

    def call(steps, *more):
        return monolith("train", path, *flags, "--set", f"train.steps={steps}", *more)

    return call


def test_a_run_is_saved_and_says_where(train, tmp_path):
    ran = train(5, "--set", "train.busy_save=wait")
    assert ran.status == 0
    assert f"step 5 is saved at {tmp_path}/run/model.ckpt-5; next: monolith inspect" in ran.err
    assert "saved 3 checkpoints" in ran.err
    assert len(existing_checkpoints(tmp_path / "run")) == 3


@pytest.mark.parametrize(("full_every", "num_full"), [(100, 2), (1, 3)])
def test_full_every_says_whether_saves_are_links(train, full_every, num_full):
    options = ("--set", "train.busy_save=wait", "--set", "batch_size=4", "--json")
    ran = train(6, "--full-every", full_every, *options)
    saves = json.loads(ran.out.splitlines()[-1])["saves"]
    # The second save is full by itself: most of the few rows are new.
    assert (saves["num_saved"], saves["num_full"]) == (3, num_full)


def test_full_every_of_no_link_is_refused(train):
    assert train(5, "--full-every", "0").status == 2


def test_skipped_saves_are_told(train):
    ran = train(5, "--save-rate", "1e-6", "--save-seconds", "3600", "--json")
    assert "train.save_rate = 1e-06  (--set)" in ran.err
    assert "train.save_seconds = 3600.0  (--set)" in ran.err
    assert "saved 2 checkpoints, 1 skipped; step 5 is saved at" in ran.err
    saves = json.loads(ran.out.splitlines()[-1])["saves"]
    assert (saves["num_saved"], saves["num_skipped"]) == (2, 1)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (SaveCounts(), "saved 0 checkpoints"),
        (SaveCounts(num_saved=1, num_waits=3), "saved 1 checkpoint, 3 waited for"),
        (SaveCounts(num_saved=1200, num_failed=2), "saved 1,200 checkpoints, 2 failed"),
    ],
)
def test_numbers_of_saves_are_told_unless_they_are_zero(counts, words):
    assert words_of_saves(counts) == words


def test_a_run_is_resumed(train, tmp_path):
    train(5)
    ran = train(8, "--resume", "--json")
    assert f"resumed at step 5 from {tmp_path}/run/model.ckpt-5" in ran.err
    last = json.loads(ran.out.splitlines()[-1])
    assert (last["num_steps"], last["figures"]["step"]) == (3, 8)


def test_a_resumed_run_comes_to_the_same_as_a_whole_one(train, monolith, task, tmp_path):
    train(5)
    train(8, "--resume")
    assert_same_as_whole(monolith, task, tmp_path, 8)


def test_a_changed_learning_rate_is_told_when_a_run_is_resumed(train, task, caplog):
    train(2)
    optimizer = "ml.table.Adagrad(0.5)"
    task[0].write_text(TASK.replace('"user", dim=2', f'"user", dim=2, optimizer={optimizer}'))
    assert train(4, "--resume").status == 0
    assert "learning rate of table 'user': 0.05 -> 0.5 since the checkpoint" in caplog.text


def assert_same_as_whole(monolith, task, tmp_path, steps):
    """The dense values of the run are those of a run from step 0 without an end before."""
    path, data = task
    flags = ("--data", data, "--set", f"train.steps={steps}", "--checkpoints", tmp_path / "whole")
    monolith("train", path, *flags)
    ours, theirs = (load(tmp_path / name) for name in ("run", "whole"))
    assert {n: v.tolist() for n, v in ours.read_dense().items()} == {
        n: v.tolist() for n, v in theirs.read_dense().items()
    }


def test_a_folder_with_checkpoints_is_not_taken_for_a_new_run(train, tmp_path):
    train(2)
    ran = train(2)
    assert ran.status == 1
    assert f"got {tmp_path}/run/model.ckpt-2 (step 2); go on with it: --resume, or" in ran.err


def test_resume_without_a_checkpoint_is_refused(train, tmp_path):
    ran = train(2, "--resume")
    assert ran.status == 1
    assert f"expected a checkpoint in {tmp_path}/run, got none; leave --resume out" in ran.err


def test_a_damaged_checkpoint_is_left_out_with_fallback(train, tmp_path):
    train(4)
    (tmp_path / "run" / "model.ckpt-4.trainer.json").write_bytes(b"{}")
    ran = train(4, "--resume")
    assert ran.status == 1
    assert "it is damaged or foreign" in ran.err
    assert ran.err.endswith("newest checkpoint that is whole: --resume --fallback\n")
    assert "resumed at step 2" in train(4, "--resume", "--fallback").err


@pytest.mark.parametrize("flags", [(), ("--resume",)])
def test_a_checkpoint_without_a_manifest_is_told_with_a_way_out(train, tmp_path, flags):
    train(4)
    (tmp_path / "run" / "model.ckpt-4.manifest.json").unlink()
    ran = train(4, *flags)
    assert ran.status == 1
    assert "got none at" in ran.err
    assert ran.err.endswith("newest checkpoint that is whole: --resume --fallback\n")


def test_where_no_checkpoint_is_whole_the_reason_is_told(train, tmp_path):
    train(1)
    (tmp_path / "run" / "model.ckpt-1.trainer.json").write_bytes(b"{}")
    ran = train(2, "--resume", "--fallback")
    assert ran.status == 1
    assert ran.err.endswith("it is damaged or foreign\n")


def test_a_run_that_goes_on_is_not_resumed_beside_it(train, tmp_path):
    train(2)
    with only_run(f"{tmp_path}/run"):
        ran = train(4, "--resume")
    assert ran.status == 1
    assert f"expected one run that saves into {tmp_path}/run, got a second" in ran.err
    assert "resumed at" not in ran.err


def test_a_checkpoint_is_no_folder(train, monolith, task, tmp_path):
    train(2)
    prefix = tmp_path / "run" / "model.ckpt-2"
    ran = monolith("train", task[0], "--checkpoints", prefix, "--resume")
    assert ran.status == 2
    assert f"got the checkpoint {prefix}; it is in {tmp_path}/run" in ran.err
    assert not prefix.exists()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--checkpoints", "none"), "expected a folder as --checkpoints, got 'none'; write ./none"),
        (("--resume",), "expected --checkpoints DIR with --resume, got none"),
        (("--fallback",), "expected --checkpoints DIR with --fallback, got none"),
        (("--save-every", "5"), "expected --checkpoints DIR with --save-every, got none"),
        (("--save-seconds", "5"), "expected --checkpoints DIR with --save-seconds, got none"),
        (("--full-every", "5"), "expected --checkpoints DIR with --full-every, got none"),
        (("--save-rate", "5"), "expected --checkpoints DIR with --save-rate, got none"),
        (("--checkpoints", "x", "--fallback"), "expected --resume with --fallback, got none"),
    ],
)
def test_options_that_need_others_are_refused(monolith, task, flags, text):
    ran = monolith("train", task[0], *flags)
    assert ran.status == 2
    assert text in ran.err


def interrupted(task, *flags, number=signal.SIGINT, status=130):
    """What a run says that gets a signal, Ctrl-C unless told otherwise, in a step."""
    path, data = task
    told = TASK.replace("logit = model", 'print("in a step", flush=True)\n        logit = model')
    path.write_text(told)  # its data has no end
    command = [sys.executable, "-m", "monolith.cli.main", "train", path, "--data", data, *flags]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        with limited(process.kill):
            assert process.stdout.readline() == "in a step\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert process.returncode == status
    return err


@pytest.mark.dist
def test_ctrl_c_saves_and_says_how_to_go_on(task, monolith, tmp_path):
    err = interrupted(task, "--checkpoints", tmp_path / "run")
    step = re.search(r"finished; saved 1 checkpoint; step (\d+) is saved at", err)[1]
    program, *words = shlex.split(re.search(r"^to go on: (.*)$", err, re.M)[1])
    assert (program, words[-1]) == ("monolith", "--resume")
    ran = monolith(*words, "--set", f"train.steps={int(step) + 1}")
    assert f"resumed at step {step} from" in ran.err
    assert "1 steps, 8 samples" in ran.err


@pytest.mark.dist
def test_sigterm_saves_and_the_run_goes_on_to_the_same_values(task, train, monolith, tmp_path):
    flags = ("--checkpoints", tmp_path / "run", "--save-every", "0")
    err = interrupted(task, *flags, number=signal.SIGTERM, status=143)
    step = int(
        re.search(r"terminated after step .* step ([\d,]+) is saved", err)[1].replace(",", "")
    )
    assert f"resumed at step {step:,}" in train(step + 3, "--resume").err
    assert_same_as_whole(monolith, task, tmp_path, step + 3)


@pytest.mark.dist
def test_ctrl_c_without_a_folder_says_that_nothing_was_saved(task):
    assert "which was finished; nothing was saved" in interrupted(task)
