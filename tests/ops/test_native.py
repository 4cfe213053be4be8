import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

import monolith
from monolith.native_training.util.paths import get_libops_path
from monolith.ops.compiled import load_native


@pytest.fixture
def failed_import(tmp_path):
    """Imports a module from a copy of the package; returns the directory and the error."""

    def run(module, library=None):
        package = tmp_path / "monolith"
        without_core = shutil.ignore_patterns("_native.*", "__pycache__")
        shutil.copytree(os.path.dirname(monolith.__file__), package, ignore=without_core)
        if library is not None:
            (package / f"_native{EXTENSION_SUFFIXES[-1]}").write_bytes(library)
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {module}"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        return package, result.stderr.splitlines()[-1]

    return run


def test_loading_twice_gives_the_same_module():
    assert load_native() is load_native()


def test_the_library_lies_where_the_path_helper_says():
    origin = load_native().__spec__.origin
    assert get_libops_path(f"monolith/{os.path.basename(origin)}") == origin


GEN_OPS = "monolith.native_training.runtime.ops.gen_monolith_ops"


@pytest.mark.dist
@pytest.mark.req("NT-GENOPS-T2")
def test_a_missing_library_is_named_in_the_error(failed_import):
    package, error = failed_import(GEN_OPS)
    path = package / f"_native{EXTENSION_SUFFIXES[0]}"
    assert error == (
        f"ImportError: [load_native] expected the compiled core at {path}, got: No module named "
        "'monolith._native'; reinstall monolith-torch, or run `make build` in a checkout"
    )


@pytest.mark.dist
@pytest.mark.req("NT-GENOPS-T2")
def test_an_unloadable_library_is_named_with_the_message_of_the_loader(failed_import):
    package, error = failed_import(GEN_OPS, library=b"not a library, but long enough for a header")
    path = package / f"_native{EXTENSION_SUFFIXES[-1]}"
    assert f"the compiled core at {path}, got: {path}: " in error


def test_the_package_itself_imports_without_the_library(failed_import):
    _, error = failed_import("monolith.errors, monolith.no_such_module")
    assert error == "ModuleNotFoundError: No module named 'monolith.no_such_module'"
