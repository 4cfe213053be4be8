import subprocess
import sys

import pytest

import monolith


def loaded_by(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return set(result.stdout.split())


def test_importing_the_package_loads_neither_torch_nor_the_core():
    assert not {"torch", "numpy", "monolith._native"} & loaded_by("import monolith")


def test_a_subpackage_is_loaded_by_its_first_use():
    assert "monolith.errors" in loaded_by("import monolith; monolith.errors")


@pytest.mark.parametrize("name", monolith.__all__)
def test_every_listed_name_exists_and_is_shown(name):
    assert getattr(monolith, name) is not None
    assert name in dir(monolith)


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="module 'monolith' has no attribute 'emebdding'"):
        _ = monolith.emebdding


def test_the_top_level_stays_small_enough_to_read():
    assert len(monolith.__all__) <= 40
