"""The page of component train: the contract of NT-CPUT."""

import dataclasses
import re

import pytest

from monolith.train import Figures, TrainSettings
from tests.docs.pages import first_cells, page
from tests.meta.parity import marked_ids
from tests.meta.tree import ROOT
from tools.acceptance import listed_ids, read_page

PAGE = page("docs/train.md")
HEADINGS = [
    "Inputs and outputs",
    "Error cases",
    "Config and environment",
    "I/O formats",
    "Threading and concurrency",
    "Determinism",
    "Performance",
    "Metrics and logging",
    "Side effects",
    "Documented deviations",
]


@pytest.mark.req("NT-CPUT-T2")
@pytest.mark.parametrize("heading", HEADINGS)
def test_the_page_has_a_heading_with_text(heading):
    assert re.search(rf"^## {heading}\n\n\S", PAGE, re.M)


@pytest.mark.req("NT-CPUT-T1")
@pytest.mark.parametrize("section", ["TS-CPUSYNC", "TS-CPUDIST", "TS-PSBM", "TS-RUNU", "TS-SRVLIB"])
def test_every_id_of_the_sections_that_the_contract_names_has_passed(section):
    states = [entry.state for name, entry in read_page().items() if name.startswith(section)]
    assert {*states} == {"passed"}


@pytest.mark.req("NT-CPUT-T2")
def test_the_tests_of_an_id_name_it():
    section = re.search(r"^## Tests by acceptance id$(.*?)^#", PAGE, re.M | re.S)[1]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| NT")]
    assert len(rows) == 5
    for ids, tests in rows:
        paths = re.findall(r"`(tests/[\w/]+\.py)`", tests)
        marked = [marked_ids((ROOT / path).read_text()) for path in paths]
        assert all(marked)
        assert listed_ids(ids) == set.union(*marked)


def test_the_table_of_options_has_every_option_and_its_default():
    defaults = {field.name: field.default for field in dataclasses.fields(TrainSettings)}
    assert first_cells(PAGE, "| option |") == list(defaults)
    for name, default in defaults.items():
        shown = f'"{default}"' if isinstance(default, str) else default
        assert f"| `{name}` | {shown} |" in PAGE


def test_the_table_of_figures_has_every_figure():
    names = [field.name for field in dataclasses.fields(Figures)]
    assert first_cells(PAGE, "| figure |") == names
