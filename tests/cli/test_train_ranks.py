"""Options of `monolith train` for synchronous ranks."""

import pytest

from tests.cli.run import run
from tests.cli.test_train import TASK


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--mode", "both"), "expected --mode local or sync, got 'both'"),
        (("--mode", "sync", "--servers", "2"), "expected no --servers with --mode sync, got one"),
        (("--mode", "sync", "--control"), "expected no --control with --mode sync, got one"),
        (("--mode", "sync", "--data-service", "h:1"), "expected no --data-service with --mode"),
        (("--mode", "sync", "--device", "cuda:99"), "CUDA devices of this machine, got 'cuda:99'"),
        (("--mode", "sync"), "expected the variables of torchrun, got no RANK"),
    ],
)
def test_wrong_usage(capsys, monkeypatch, tmp_path, options, text):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    task = tmp_path / "clicks.py"
    task.write_text(TASK)
    ran = run(capsys, monkeypatch, "train", task, *options)
    assert ran.status == 2
    assert text in ran.err
