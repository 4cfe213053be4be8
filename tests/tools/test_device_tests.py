import json
import re

import pytest
import torch

from tests.tools.test_commit import git, tree  # noqa: F401
from tools import device_tests
from tools.device_tests import (
    RESULTS,
    Outcomes,
    RecordError,
    add_run,
    describe_run,
    digest_of_test,
    main,
    outcome_on_device,
    read_runs,
    run_tests,
    tree_digest,
)


@pytest.fixture
def project(tree):  # noqa: F811
    """A repository with a test file and a module that it imports."""
    (tree / "tests").mkdir()
    (tree / "tests" / "test_a.py").write_text("from tests import cases\nimport tests.other\n")
    (tree / "tests" / "cases.py").write_text("from tests.deep import x\n")
    (tree / "tests" / "deep.py").write_text("")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "tests")
    return tree


def run_of(root, **fields):
    commit = git(root, "rev-parse", "HEAD")
    sources = {"tests/test_a.py": digest_of_test("tests/test_a.py", root)}
    tests = {"tests/test_a.py::test": "passed"}
    return {
        "commit": commit, "tree": tree_digest(root), "sources": sources, "tests": tests, **fields,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["test_a.py", "cases.py", "deep.py"])
def test_a_digest_is_that_of_a_test_and_what_it_imports(project, name):
    before = digest_of_test("tests/test_a.py", project)
    (project / "tests" / "unrelated.py").touch()
    assert digest_of_test("tests/test_a.py", project) == before
    (project / "tests" / name).write_text("x = 1")
    assert digest_of_test("tests/test_a.py", project) != before


def test_the_newest_run_that_has_a_test_counts(project):
    node = "tests/test_a.py::test"
    runs = [run_of(project), run_of(project, tests={node: "failed"}), {"tests": {}}]
    assert outcome_on_device(runs, node, project) == "failed"
    assert outcome_on_device(runs, "tests/test_a.py::other", project) is None
    (project / "tests" / "deep.py").write_text("changed")
    assert outcome_on_device(runs, node, project) == "out of date"


def test_runs_are_kept_the_newest_last(project):
    assert read_runs(project) == []
    add_run(run_of(project, date="1"), project)
    git(project, "add", ".")
    git(project, "commit", "-qm", "results")
    add_run(run_of(project, date="2"), project)
    assert [run["date"] for run in read_runs(project)] == ["1", "2"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"commit": "abc"}, "expected a run of the checked out commit .*, got one of abc; check"),
        ({"tree": "abc"}, "got one of a changed tree; run it again on a clean tree"),
    ],
)
def test_a_run_of_other_sources_is_refused(project, fields, words):
    with pytest.raises(RecordError, match=words):
        add_run(run_of(project, **fields), project)
    assert read_runs(project) == []


def test_outcomes_and_ids_of_tests_are_collected(pytester):
    pytester.makeini("[pytest]\nmarkers =\n    gpu: device\n    req(*ids): ids")
    path = pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.gpu\n@pytest.mark.req('A', 'B')\ndef test_a(): assert 0\n"
        "@pytest.mark.gpu\ndef test_b(): pass\n"
        "def test_c(): pass\n"
    )
    status, outcomes = run_tests([str(path)])
    names = {node.partition("::")[2]: outcome for node, outcome in outcomes.tests.items()}
    assert (status, names) == (1, {"test_a": "failed", "test_b": "passed"})
    assert ["A", "B"] in outcomes.ids.values()


def test_outcomes_of_folders_with_a_conftest_each_are_collected(pytester):
    pytester.makeini("[pytest]\nmarkers = gpu: device")
    for folder in ("a", "b"):
        (pytester.path / folder).mkdir()
        (pytester.path / folder / "conftest.py").write_text(
            "def pytest_runtest_logreport(report): pass"
        )
        (pytester.path / folder / f"test_{folder}.py").write_text(
            "import pytest\n@pytest.mark.gpu\ndef test(): pass\n"
        )
    status, outcomes = run_tests([str(pytester.path)])
    assert (status, [*outcomes.tests.values()]) == (0, ["passed", "passed"])


def test_a_run_says_where_and_when_it_was(project, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "device")
    node = "tests/test_a.py::test"
    run = describe_run(Outcomes({node: "passed"}, {node: ["A"]}), "abc", project)
    assert (run["device"], run["commit"], run["ids"]) == ("device", "abc", ["A"])
    assert run["sources"] == {"tests/test_a.py": digest_of_test("tests/test_a.py", project)}
    assert {"torch", "cuda", "date", "tree"} <= run.keys()


def test_without_a_device_nothing_is_recorded(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["device_tests.py"])
    assert main() == 2
    assert "expected a CUDA device, got none" in capsys.readouterr().err


@pytest.fixture
def device(monkeypatch):
    """Pretends that there is a device and that a test of each file passed on it."""

    def run_tests(paths):
        files = paths or ["tests/test_errors.py"]
        return 0, Outcomes({f"{file}::test": "passed" for file in files}, {})

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "device")
    monkeypatch.setattr(device_tests, "run_tests", run_tests)

    def run(*words):
        monkeypatch.setattr("sys.argv", ["device_tests.py", *map(str, words)])
        return main()

    return run


def test_a_file_needs_the_commit_by_name(device, capsys, tmp_path):
    assert device("--out", tmp_path / "run.json") == 2
    assert "expected --out and --commit together" in capsys.readouterr().err


def test_a_run_without_git_is_a_file_that_can_be_added(device, tmp_path, monkeypatch):
    path, runs = tmp_path / "run.json", []
    assert device("--out", path, "--commit", "abc") == 0
    monkeypatch.setattr(device_tests, "add_run", runs.append)
    assert device("--add", path) == 0
    assert runs == [json.loads(path.read_text())]
    assert runs[0]["commit"] == "abc"


def test_a_run_of_some_paths_has_their_tests_only(device, tmp_path):
    path = tmp_path / "run.json"
    assert device("tests/test_utils.py", "--out", path, "--commit", "abc") == 0
    assert json.loads(path.read_text())["tests"] == {"tests/test_utils.py::test": "passed"}


def test_a_run_without_tests_is_not_recorded(device, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(device_tests, "run_tests", lambda paths: (2, Outcomes({}, {})))
    assert device("--out", tmp_path / "run.json", "--commit", "abc") == 2
    assert "expected tests that ran, got none (pytest: 2)" in capsys.readouterr().err
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("{", "expected a run in .*, got: Exp"),
        ("[]", "file that --out wrote"),
    ],
)
def test_a_file_without_a_run_is_not_added(device, tmp_path, capsys, text, words):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    assert device("--add", tmp_path / "run.json") == 2
    assert re.search(words, capsys.readouterr().err)


def test_a_run_on_a_clean_tree_is_added_at_once(device, monkeypatch):
    runs = []
    monkeypatch.setattr(device_tests, "add_run", runs.append)
    monkeypatch.setattr(device_tests, "clean_commit", lambda *words: "abc")
    assert device() == 0
    assert [run["commit"] for run in runs] == ["abc"]


def test_the_recorded_runs_of_this_tree_can_be_read():
    assert all({"device", "commit", "date"} <= run.keys() for run in read_runs())
    assert RESULTS.name == "gpu_acceptance.json"
