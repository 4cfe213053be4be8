import re
import shlex

from tests.cli.run import run
from tests.docs.pages import blocks, page
from tests.meta.tree import ROOT

README = page("README.md")


def test_the_snippet_prints_what_the_page_shows(capsys):
    (code,) = blocks(README, "python")
    (shown,) = blocks(README, "text")
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown


def test_train_your_model_works_by_copy_and_paste(capsys, monkeypatch, tmp_path):
    (commands,) = blocks(README, "console")
    monkeypatch.chdir(tmp_path)
    lines = commands.splitlines()
    results = [run(capsys, monkeypatch, *shlex.split(line)[2:]) for line in lines]
    assert [result.status for result in results] == [0, 0, 0]
    assert "100 steps, 102,400 samples" in results[1].err


def test_every_link_leads_to_a_file():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text()):
            assert path.parent.joinpath(target).exists(), f"{path}: {target}"
