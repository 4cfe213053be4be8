import importlib
import inspect

import pytest

from tests.meta.parity import is_there
from tests.meta.test_parity import MISSING_MODULES, MISSING_NAMES
from tests.meta.tree import ROOT

LINES = (ROOT / "tests" / "meta" / "public_names.txt").read_text().splitlines()[1:]
NAMES = [line.split() for line in LINES]
IS_OF_KIND = {
    "class": inspect.isclass,
    "constant": lambda value: not callable(value),
    "function": lambda value: callable(value) and not inspect.isclass(value),
    "method": lambda value: callable(value) or isinstance(value, property),
}


def test_all_names_of_the_reference_system_are_listed():
    assert len(LINES) == len({*LINES}) > 270
    assert len({module for module, *_ in NAMES}) == 44


@pytest.mark.req("G-T3")
@pytest.mark.parametrize("module", sorted({module for module, *_ in NAMES}))
def test_a_module_has_its_names_but_for_those_that_docs_parity_lists(module):
    if module in MISSING_MODULES:
        return
    importlib.import_module(module)
    names = [
        name for other, *kind_and_name in NAMES if other == module for name in kind_and_name[1:]
    ]
    missing = {name for name in names if not is_there(f"{module}.{name}")}
    assert missing == {name for name in names if f"{module}.{name}" in MISSING_NAMES}


@pytest.mark.req("G-T3")
@pytest.mark.parametrize("kind", IS_OF_KIND)
def test_names_are_of_their_kind(kind):
    for module, other, *names in NAMES:
        if other != kind or module in MISSING_MODULES or not is_there(f"{module}.{names[0]}"):
            continue
        value = importlib.import_module(module)
        for part in names[0].split("."):
            value = (
                inspect.getattr_static(value, part) if kind == "method" else getattr(value, part)
            )
        value = getattr(value, "__func__", value)  # of static and class methods
        assert IS_OF_KIND[kind](value), (module, names[0], value)
