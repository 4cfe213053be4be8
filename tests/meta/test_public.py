import ast
import doctest
import importlib

import pytest

from tests.meta.public import is_public, listed_names, listing_problems, taken_names, undocumented
from tests.meta.tree import modules

PUBLIC_MODULES = [module for module in modules() if all(map(is_public, module[0].split(".")))]


def test_every_public_name_is_documented():
    assert [name for module, _, tree in PUBLIC_MODULES for name in undocumented(tree, module)] == []


def test_every_public_name_is_listed_in_a_sorted_all():
    problems = {module: list(listing_problems(tree)) for module, _, tree in PUBLIC_MODULES}
    assert {module: found for module, found in problems.items() if found} == {}


def test_every_name_that_a_package_takes_from_its_modules_is_listed():
    packages = [(name, tree) for name, path, tree in modules() if path.name == "__init__.py"]
    missing = [taken_names(tree, name) - set(listed_names(tree) or ()) for name, tree in packages]
    assert set().union(*missing) == set()


def test_every_listed_name_exists_in_the_installed_module():
    listing = [module for module, _, tree in PUBLIC_MODULES if listed_names(tree) is not None]
    installed = [importlib.import_module(module) for module in listing]
    listed = [(module, name) for module in installed for name in module.__all__]
    assert [(module, name) for module, name in listed if not hasattr(module, name)] == []


@pytest.mark.parametrize(
    "module", [name for name, path, _ in PUBLIC_MODULES if ">>>" in path.read_text()]
)
def test_the_examples_in_docstrings_run(module):
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("x = 1", "m"),
        ('"""D."""\ndef f(): ...', "m.f"),
        ('"""D."""\nasync def f(): ...', "m.f"),
        ('"""D."""\nclass A: ...', "m.A"),
        ('"""D."""\nclass A:\n    """D."""\n    def f(self): ...', "m.A.f"),
    ],
)
def test_a_missing_docstring_is_found(source, name):
    assert list(undocumented(ast.parse(source), "m")) == [name]


@pytest.mark.parametrize(
    "source",
    [
        '"""D."""\ndef _f(): ...',
        '"""D."""\nclass _A: ...',
        '"""D."""\nclass A:\n    """D."""\n    @override\n    def f(self): ...',
    ],
)
def test_private_names_and_overrides_need_no_docstring(source):
    assert list(undocumented(ast.parse(source), "m")) == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def f(): ...", "no __all__"),
        ("__all__ = ['b', 'a']", "__all__ is not sorted"),
        ("__all__ = []\nclass A: ...", "A is not in __all__"),
    ],
)
def test_a_wrong_listing_is_found(source, problem):
    assert list(listing_problems(ast.parse(source))) == [problem]


@pytest.mark.parametrize("source", ["x = 1", "__all__ = ['A', 'b']\nclass A: ...\ndef b(): ..."])
def test_a_right_listing_has_no_problem(source):
    assert list(listing_problems(ast.parse(source))) == []
