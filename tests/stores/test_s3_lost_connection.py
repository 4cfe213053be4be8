"""Connections to a bucket that are lost, or hang, in the middle of a save or a restore."""

import contextlib
import time
from dataclasses import replace

import pytest
import torch

from monolith.checkpoint import existing_checkpoints, load, open_checkpoint
from monolith.errors import OpError
from monolith.observe import TensorBoardSink, store_log
from monolith.train import Hook, Trainer, TrainSettings
from monolith.train.saves import checkpoint_hook
from monolith.util import stores
from tests.checkpoint.cases import ITEM, filled, make, saved
from tests.stores.conftest import use_options
from tests.stores.tcp_proxy import Proxy
from tests.table.disk.cases import assert_same_table
from tests.train.tasks import Counting

pytestmark = pytest.mark.dist

LIMIT_SECONDS = 60.0
# A call to the store fails after seconds; without these options after minutes.
SHORT = {"connect_timeout": 1, "read_timeout": 1, "retries": {"total_max_attempts": 1}}


@pytest.fixture
def proxy(bucket, monkeypatch):
    """A proxy through which this process reaches the bucket."""
    with contextlib.closing(Proxy(bucket.port)) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        options = {**bucket.options, "endpoint_url": url, "config_kwargs": SHORT}
        use_options(monkeypatch, options)
        monkeypatch.setattr(stores, "_CALL_SECONDS", 6.0)
        monkeypatch.setattr(stores, "_CANCEL_SECONDS", 1.0)
        yield proxy


class After(Hook):
    def __init__(self, step, call):
        self._step, self._call = step, call

    def after_run(self, ctx, results):
        if ctx.run.global_step == self._step:
            self._call()


@pytest.fixture
def lose(proxy):
    """Return a hook that loses the connection in the middle of the save after step 4."""
    return lambda mode: After(4, lambda: proxy.set(mode, after_bytes=6000))


@pytest.fixture
def settings(bucket):
    """Options of a run into the bucket, which saves between two steps."""
    return TrainSettings(
        checkpoint_dir=f"{bucket.url}/run", save_every=2, background_saves=False, busy_save="wait"
    )


@pytest.fixture
def first_failure(monkeypatch):
    """Return a function that sets what happens when the trainer tries a save again."""
    warning, calls = checkpoint_hook._log.warning, []

    def note(text, *arguments):
        warning(text, *arguments)
        if "tried again" in text:
            for call in calls:
                call()

    monkeypatch.setattr(checkpoint_hook._log, "warning", note)
    return calls.append


@pytest.mark.parametrize("mode", ["drop", "stall"])
def test_a_save_whose_connection_was_lost_is_tried_again(
    bucket, proxy, settings, lose, first_failure, mode, caplog
):
    first_failure(lambda: proxy.set("pass"))
    with Trainer(Counting(6), settings) as trainer:
        assert trainer.fit(hooks=[lose(mode)]).num_steps == 6
    assert "saving step 4 failed, it is tried again: [" in caplog.text
    steps = [open_checkpoint(prefix).step for prefix in existing_checkpoints(f"{bucket.url}/run")]
    assert steps == [2, 4, 6]
    assert [name for name in bucket.files("run") if name.endswith((".saving", ".lease"))] == []
    assert bucket.system.list_multipart_uploads(bucket.name) == []


@pytest.mark.parametrize("mode", ["drop", "stall"])
def test_a_save_that_fails_twice_leaves_the_older_checkpoints(bucket, proxy, settings, lose, mode):
    start = time.monotonic()
    with Trainer(Counting(6), settings) as trainer:
        with pytest.raises(OpError, match=rf"{bucket.url}/run"):
            trainer.fit(hooks=[lose(mode)])
        assert trainer.run.global_step == 4
    assert time.monotonic() - start < LIMIT_SECONDS
    proxy.set("pass")
    (prefix,) = existing_checkpoints(f"{bucket.url}/run")
    assert load(f"{bucket.url}/run").step == open_checkpoint(prefix).step == 2


def test_training_goes_on_while_the_store_is_lost(bucket, proxy, settings):
    settings = replace(settings, background_saves=True)
    hooks = [After(1, lambda: proxy.set("drop")), After(5, lambda: proxy.set("pass"))]
    with Trainer(Counting(6), settings) as trainer:
        result = trainer.fit(hooks=hooks)
    assert result.num_steps == 6
    assert result.saves.num_failed >= 1  # step 2; step 4 waits for the end of its tries
    steps = [open_checkpoint(prefix).step for prefix in existing_checkpoints(f"{bucket.url}/run")]
    assert set(steps) in ({6}, {4, 6})


def test_what_a_failed_save_left_is_deleted_by_the_next_one(bucket, proxy):
    saved(f"{bucket.url}/run/c-1")
    proxy.set("drop", after_bytes=20_000)
    with pytest.raises(OpError, match=rf"{bucket.url}/run/c-2"):
        saved(f"{bucket.url}/run/c-2", dense={"w": torch.ones(100_000)})
    proxy.set("pass")
    assert "c-2.manifest.json.saving" in bucket.files("run")
    saved(f"{bucket.url}/run/c-3", tables=())
    assert {name[:3] for name in bucket.files("run")} == {"c-1", "c-3"}


@pytest.mark.parametrize("mode", ["drop", "stall"])
def test_a_restore_whose_connection_is_lost_names_the_path_and_changes_nothing(bucket, proxy, mode):
    checkpoint = open_checkpoint(saved(f"{bucket.url}/run/c-1"))
    tables = [filled(num_rows=3), make(ITEM)]
    start = time.monotonic()
    proxy.set(mode, after_bytes=4000)
    with pytest.raises(OpError, match=rf"^\[.*\] expected to read {bucket.url}/run/c-1, got"):
        checkpoint.restore(tables=tables, dense={"steps": torch.tensor(0)})
    assert time.monotonic() - start < LIMIT_SECONDS
    assert_same_table(tables[0], filled(num_rows=3))


def test_training_does_not_wait_for_a_sink_whose_store_hangs(bucket, proxy, monkeypatch, caplog):
    monkeypatch.setattr(store_log, "_PACE_SECONDS", 0.0)
    monkeypatch.setattr(store_log, "_FIRST_WORD_SECONDS", 0.01)
    monkeypatch.setattr(store_log, "_CLOSE_SECONDS", 0.02)
    with monkeypatch.context() as patch:  # the store answers, however busy the machine is
        patch.setattr(stores, "_CALL_SECONDS", 60.0)
        sink = TensorBoardSink(f"{bucket.url}/logs")
    proxy.set("stall")
    with Trainer(Counting(20), TrainSettings(log_every=1), metrics=sink) as trainer:
        assert trainer.fit().num_steps == 20
    sink.close()
    assert "bytes of the log s3://" in caplog.text
