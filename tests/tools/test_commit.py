import subprocess

import pytest

from tools.commit import TreeError, clean_commit


def git(root, *words):
    settings = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
    done = subprocess.run(
        ["git", "-C", str(root), *settings, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path):
    """A git repository with one commit."""
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


pytestmark = pytest.mark.dist  # git is another process


def test_a_clean_tree_has_its_commit(tree):
    assert clean_commit("x", "commit", root=tree) == git(tree, "rev-parse", "HEAD")


@pytest.mark.parametrize("name", ["a.py", "new.py"])
def test_a_changed_or_new_file_is_refused_by_name(tree, name):
    (tree / name).write_text("2")
    with pytest.raises(TreeError, match=rf"\[x\] .* got 1 changed or new files \({name}\); commit"):
        clean_commit("x", "commit", root=tree)


def test_of_many_files_three_are_named(tree):
    for number in range(5):
        (tree / f"{number}.py").touch()
    with pytest.raises(TreeError, match=r"5 changed or new files \(0.py, 1.py, 2.py, ...\)"):
        clean_commit("x", "commit", root=tree)


def test_a_folder_can_be_left_out(tree):
    (tree / "results").mkdir()
    (tree / "results" / "a.json").touch()
    assert clean_commit("x", "commit", ignore="results", root=tree)


def test_a_folder_without_git_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(TreeError, match=r"\[x\] expected a git repository, got: fatal"):
        clean_commit("x", "commit", root=tmp_path)
