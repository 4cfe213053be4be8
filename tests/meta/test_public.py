import doctest
import importlib

import pytest

from tests.meta.public import is_public, listed_names, taken_names, undocumented
from tests.meta.tree import modules

PACKAGES = [
    (name, tree)
    for name, path, tree in modules()
    if path.name == "__init__.py" and all(map(is_public, name.split(".")))
]


def test_every_exported_name_is_documented():
    exported = [
        (f"{name}.{listed}", getattr(importlib.import_module(name), listed))
        for name, tree in PACKAGES
        for listed in listed_names(tree) or ()
    ]
    assert [lacking for name, value in exported for lacking in undocumented(value, name)] == []


@pytest.mark.parametrize(
    "package", [name for name, tree in PACKAGES if listed_names(tree) is not None]
)
def test_a_listing_is_sorted(package):
    listed = importlib.import_module(package).__all__
    assert list(listed) == sorted(listed)


def test_every_name_that_a_package_takes_from_its_modules_is_listed():
    missing = [taken_names(tree, name) - set(listed_names(tree) or ()) for name, tree in PACKAGES]
    assert set().union(*missing) == set()


@pytest.mark.parametrize(
    "module", [name for name, path, _ in modules() if ">>>" in path.read_text()]
)
def test_the_examples_in_docstrings_run(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0


class Documented:
    """Says what it is."""

    def told(self):
        """Says what it does."""

    def silent(self): ...

    def _private(self): ...


class Derived(Documented):
    """Says what it is too."""

    def told(self): ...


def test_a_missing_docstring_is_found():
    assert list(undocumented(Documented, "m.A")) == ["m.A.silent"]
    assert list(undocumented(lambda: None, "m.f")) == ["m.f"]
    assert list(undocumented(type("B", (), {}), "m.B")) == ["m.B"]


def test_an_override_is_documented_where_its_name_is_introduced():
    assert list(undocumented(Derived, "m.A")) == []
