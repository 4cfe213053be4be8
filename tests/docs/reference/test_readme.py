import re

import pytest

from tests.docs.pages import page
from tests.meta.parity import is_there, listed_names
from tests.meta.tree import ROOT

FOLDER = ROOT / "docs" / "reference"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))
README = page("docs/reference/README.md")


def test_every_name_of_the_index_exists():
    names = listed_names(README)
    assert len(names) > 15
    assert [name for name in sorted(names) if not is_there(name)] == []


def test_the_index_lists_every_page():
    assert [name for name in PAGES if f"({name})" not in README] == ["README.md"]


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file(name):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (FOLDER / name).read_text())
    assert [target for target in targets if not (FOLDER / target).is_file()] == []


def test_the_index_fits_a_screen():
    assert len(README.splitlines()) <= 60
