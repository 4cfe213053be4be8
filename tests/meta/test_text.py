import re
import subprocess

import pytest

from tests.meta.tree import ROOT

# Spelled so that this file does not find itself.
FORBIDDEN = {
    "unfinished": re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b"),
    "machine path": re.compile(r"(?<![\w./*-])/(?:home|root|Users|work|opt)/\w"),
}


def findings(text):
    return [kind for kind, pattern in FORBIDDEN.items() if pattern.search(text)]


def project_files():
    """Tracked files, and new ones that git does not ignore."""
    # A checkout may belong to another user, in a container for example.
    git = ["git", "-c", "safe.directory=*"]
    command = [*git, "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in listing.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="lists files with git")
def test_no_file_holds_unfinished_work_or_paths_of_one_machine():
    texts = ((path, path.read_text(errors="ignore")) for path in project_files())
    found = {str(path.relative_to(ROOT)): findings(text) for path, text in texts}
    assert {path: kinds for path, kinds in found.items() if kinds} == {}


@pytest.mark.parametrize(
    ("text", "kind"),
    [("# " + "TO" + "DO later", "unfinished"), ("cd /" + "home/someone", "machine path")],
)
def test_forbidden_text_is_found(text, kind):
    assert findings(text) == [kind]


@pytest.mark.parametrize("text", ["src/home/x", "https://a.example/work/x", "/usr/lib"])
def test_relative_and_system_paths_are_fine(text):
    assert findings(text) == []
