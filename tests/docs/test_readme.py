import re

from tests.docs.pages import blocks, first_cells, page
from tests.meta.tree import ROOT

README = page("README.md")


def test_the_snippet_prints_what_the_page_shows(capsys):
    (code,) = blocks(README, "python")
    (shown,) = blocks(README, "text")
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown


def test_the_short_table_has_the_verbs_of_the_full_one():
    short = {verb for cell in first_cells(README, "| verb |") for verb in re.findall(r"\w+", cell)}
    assert short == set(first_cells(page("docs/tables.md"), "| verb |"))


def test_every_link_leads_to_a_file():
    names = ("README.md", "CONTRIBUTING.md", "docs/demo.md", "docs/tables.md", "docs/parity.md")
    for name in names:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page(name)):
            assert (ROOT / name).parent.joinpath(target).is_file()
