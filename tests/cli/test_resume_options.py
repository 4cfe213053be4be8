"""`--auto-resume`, by the options of a worker."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith.checkpoint import find
from monolith.cli.options.resume_options import ResumeOptions
from tests.cli.run import run
from tests.cli.test_train import TASK


def test_a_folder_without_checkpoints_begins(tmp_path):
    assert ResumeOptions(str(tmp_path), False, False, is_automatic=True).check() is None


def test_the_newest_checkpoint_is_gone_on_with(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks.py").write_text(TASK)
    ran = run(capsys, monkeypatch, *save_once(tmp_path))
    assert ran.status == 0, ran.err
    begun = ResumeOptions("run", False, False, is_automatic=True).check()
    assert begun is not None
    assert begun.step == find("run").step == 2


def save_once(folder):
    columns = {"user": range(64), "item": range(64), "click": [0.0, 1.0] * 32}
    pq.write_table(pa.table(columns), folder / "train.parquet")
    options = ("--data", "train.parquet", "--set", "train.steps=2", "--checkpoints", "run")
    return ("train", "clicks.py", *options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("d", True, False, True), "expected --resume or --auto-resume, got both"),
        ((None, False, False, True), "expected --checkpoints DIR with --auto-resume, got none"),
        ((None, False, True, False), "expected --checkpoints DIR with --fallback, got none"),
    ],
)
def test_options_that_do_not_fit_are_refused(capsys, options, text):
    with pytest.raises(SystemExit) as end:
        ResumeOptions(*options).check()
    assert end.value.code == 2
    assert text in capsys.readouterr().err


def test_fallback_goes_with_it(tmp_path):
    assert ResumeOptions(str(tmp_path), False, True, is_automatic=True).check() is None
