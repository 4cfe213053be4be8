import functools

import pytest

from monolith.cli.tasks.task_file import load_task_class
from tests.cli.run import run


@pytest.fixture
def monolith(capsys, monkeypatch):
    return functools.partial(run, capsys, monkeypatch)


def test_a_new_file_holds_a_task_of_its_name(monolith, tmp_path):
    ran = monolith("new", tmp_path / "my_ads.py")
    assert ran.status == 0
    assert load_task_class(str(tmp_path / "my_ads.py")).__name__ == "MyAds"


def test_the_next_command_is_said(monolith, tmp_path):
    path = tmp_path / "ads.py"
    assert f"next: monolith train {path}" in monolith("new", path).err.replace("\n", "")


def test_a_name_that_is_no_class_name_keeps_that_of_the_template(monolith, tmp_path):
    monolith("new", tmp_path / "2026.py")
    assert load_task_class(str(tmp_path / "2026.py")).__name__ == "Ranker"


def test_a_file_that_exists_is_kept(monolith, tmp_path):
    (tmp_path / "ads.py").write_text("mine")
    ran = monolith("new", tmp_path / "ads.py")
    assert ran.status == 1
    assert "replace it with --force" in ran.err.replace("\n", " ")
    assert (tmp_path / "ads.py").read_text() == "mine"


def test_force_replaces_a_file(monolith, tmp_path):
    (tmp_path / "ads.py").write_text("mine")
    assert monolith("new", tmp_path / "ads.py", "--force").status == 0
    assert "class Ads(" in (tmp_path / "ads.py").read_text()


def test_another_ending_is_wrong_usage(monolith, tmp_path):
    ran = monolith("new", tmp_path / "ads.txt")
    assert ran.status == 2
    assert "ends in .py" in ran.err


def test_a_missing_folder_is_said(monolith, tmp_path):
    ran = monolith("new", tmp_path / "none" / "ads.py")
    assert ran.status == 1
    assert "got none at" in ran.err.replace("\n", " ")
