"""Every name of the reference system is there, or docs/parity.md says that it is not."""

import pytest

from tests.docs.pages import column_cells
from tests.meta.parity import code
from tests.meta.public_names import PUBLIC_NAMES, find_module, kind_of, read_names
from tests.meta.tree import ROOT

PARITY = (ROOT / "docs" / "parity.md").read_text()
TABLE = "| module | names that are not there |"


def missing_modules(page):
    return {
        code(cell)[0].removeprefix("monolith.") for cell in column_cells(page, "| import path |", 0)
    }


def missing_names(page):
    """Module -> names that it lacks."""
    modules = [code(cell)[0].removeprefix("monolith.") for cell in column_cells(page, TABLE, 0)]
    names = [set(code(cell)) for cell in column_cells(page, TABLE, 1)]
    return dict(zip(modules, names, strict=True))


@pytest.mark.req("G-T3")
def test_the_list_has_every_name():
    assert len(PUBLIC_NAMES) == 44
    assert sum(map(len, PUBLIC_NAMES.values())) == 272


@pytest.mark.req("G-T3")
def test_the_modules_that_are_not_there_are_those_of_the_page():
    absent = {name for name in PUBLIC_NAMES if find_module(f"monolith.{name}") is None}
    assert absent == missing_modules(PARITY) & {*PUBLIC_NAMES}


@pytest.mark.req("G-T3")
@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_a_module_has_its_names_but_those_of_the_page(name):
    module = find_module(f"monolith.{name}")
    if module is None:
        assert name in missing_modules(PARITY)
        return
    kinds = {key: kind_of(module, key) for key in PUBLIC_NAMES[name]}
    absent = {key for key, kind in kinds.items() if kind is None}
    assert absent == missing_names(PARITY).get(name, set())
    assert kinds == {
        key: None if key in absent else kind for key, kind in PUBLIC_NAMES[name].items()
    }


@pytest.mark.req("G-T3")
def test_the_page_lists_no_other_names():
    listed = {(name, key) for name, keys in missing_names(PARITY).items() for key in keys}
    assert {(name, key) for name, key in listed if key not in PUBLIC_NAMES.get(name, {})} == set()


def test_kinds_follow_from_the_form_of_a_name():
    names = "Table, Table.lookup, params, _PORT\n    Table.size (property)"
    text = f"# comment\na.b:\n    {names}\nempty:\n"
    kinds = {
        "Table": "class",
        "Table.lookup": "method",
        "params": "function",
        "_PORT": "constant",
        "Table.size": "property",
    }
    assert read_names(text) == {"a.b": kinds, "empty": {}}


class Things:
    class Owner:
        def method(self): ...

        size = property(lambda self: 1)
        number = 3

    LIMIT = 3
    TEXTS: list[str] = []

    @staticmethod
    def call(): ...


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Owner", "class"),
        ("Owner.method", "method"),
        ("Owner.size", "property"),
        ("Owner.number", None),
        ("Owner.other", None),
        ("Other.method", None),
        ("LIMIT", "constant"),
        ("TEXTS", "constant"),
        ("call", "function"),
        ("other", None),
    ],
)
def test_kinds_are_told_apart(name, kind):
    assert kind_of(Things, name) == kind
