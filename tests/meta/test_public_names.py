"""Every name of the reference system is there."""

import pytest

from tests.meta.public_names import PUBLIC_NAMES, find_module, kind_of, read_names


@pytest.mark.req("G-T3")
def test_the_list_has_every_name():
    assert len(PUBLIC_NAMES) == 44
    assert sum(map(len, PUBLIC_NAMES.values())) == 272


@pytest.mark.req("G-T3")
@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_a_module_has_its_names(name):
    module = find_module(f"monolith.{name}")
    assert module is not None
    assert {key: kind_of(module, key) for key in PUBLIC_NAMES[name]} == PUBLIC_NAMES[name]


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
