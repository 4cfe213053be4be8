import contextlib
import os
import re
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from examples import clicks, demo_servers
from examples.clicks_task import Ranker, RankerSettings
from tests.meta.tree import ROOT


def test_the_files_have_the_batches_of_the_stream(tmp_path):
    demo_servers.write_clicks(tmp_path, 1)
    table = pq.read_table(tmp_path / "train" / "day_00.parquet")
    assert len(table) == clicks.STEPS_PER_DAY * clicks.BATCH
    paths = {"train": str(tmp_path / "train"), "eval": str(tmp_path / "held_out.parquet")}
    files, stream = (iter(Ranker(RankerSettings(data)).source("train")) for data in (paths, {}))
    for _ in range(3):
        ours, theirs = next(files), next(stream)
        assert ours.label.tolist() == theirs.labels["click"].tolist()
        assert ours.time.tolist() == theirs.time.tolist()
        for name in clicks.FEATURES:
            assert ours.features[name].to_lists() == theirs.features[name].to_lists()


def test_files_that_are_there_are_kept(tmp_path, capsys):
    (tmp_path / "held_out.parquet").touch()
    demo_servers.write_clicks(tmp_path, 3)
    assert "already" in capsys.readouterr().out
    assert os.listdir(tmp_path) == ["held_out.parquet"]


def test_wrong_arguments_are_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        demo_servers.parse(["--days", "0"])
    assert "error: expected --days of at least 1, got 0" in capsys.readouterr().err


def job(name, auc):
    return demo_servers.Job(name, auc, 240, 1, 60, 0, 20.0)


@pytest.mark.parametrize(("auc", "words"), [(0.7501, "+0.0001, within"), (0.7, "NOT within")])
def test_the_summary_compares_the_scores(auc, words):
    assert words in demo_servers.summary([job("undisturbed", 0.75), job("killed", auc)])


@pytest.mark.parametrize(("auc", "status"), [(0.7501, None), (0.7, 1)])
def test_a_killed_run_that_differs_ends_with_status_1(monkeypatch, tmp_path, capsys, auc, status):
    jobs = iter([job("undisturbed", 0.75), job("killed", auc)])
    monkeypatch.setattr(demo_servers, "write_clicks", lambda *arguments: None)
    monkeypatch.setattr(demo_servers, "launch", lambda *arguments, **options: next(jobs))
    monkeypatch.setattr(sys, "argv", ["demo_servers.py", "--folder", str(tmp_path)])
    with pytest.raises(SystemExit) if status else contextlib.nullcontext() as ended:
        demo_servers.main()
    assert status is None or ended.value.code == status
    assert "of the killed run differs by" in capsys.readouterr().out


@pytest.mark.dist
@pytest.mark.slow
def test_a_job_with_a_killed_server_trains_everything(tmp_path):
    program = [sys.executable, str(ROOT / "examples" / "demo_servers.py")]
    words = [*program, "--folder", str(tmp_path)]  # the recorded spread is that of all its days
    ran = subprocess.run(words, capture_output=True, text=True, timeout=900, cwd=ROOT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"differs by [+-]0\.\d{4}, within the spread", ran.stdout), ran.stdout
    assert "kill -9" in ran.stdout
    row = r"one server killed +0\.\d{4} +480 +1 +\d+"
    assert re.search(row, ran.stdout), ran.stdout
    folder = str(tmp_path)
    assert (
        folder
        not in subprocess.run(["ps", "-ax", "-o", "args"], capture_output=True, text=True).stdout
    )
