import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest

import monolith
from monolith import path_utils
from monolith.native_training.util import paths

LAYOUTS = {
    "bundle": "app.zip/__main__",
    "installation": "lib/site-packages",
    "checkout": "src",
    "bundle inside an installation": "site-packages/app/__main__",
    "checkout in a directory of the same name": "monolith/src",
    "nested installation": "site-packages/a/site-packages",
}


def find_main_from(directory):
    """Runs `find_main` of a copy of the implementing file that lies in `directory`."""
    directory.mkdir(parents=True)
    copy = shutil.copy(paths.__file__, directory)
    spec = importlib.util.spec_from_file_location("paths_copy", copy)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.find_main()


@pytest.mark.req("MN-PATH-T1")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_has_its_base(tmp_path, layout):
    base = tmp_path / LAYOUTS[layout]
    assert find_main_from(base / "monolith" / "util") == str(base)


@pytest.mark.req("MN-PATH-T1")
@pytest.mark.parametrize("directory", ["site-packages/other", "__main__/other", "plain/other"])
def test_a_tree_without_the_package_is_refused_with_the_full_path(tmp_path, directory):
    path = tmp_path / directory / "paths.py"
    with pytest.raises(
        ValueError, match=rf"^\[find_main\] expected .* got '{re.escape(str(path))}'"
    ):
        find_main_from(path.parent)


@pytest.mark.req("MN-PATH-T1")
def test_the_first_marker_decides_even_if_a_later_one_would_fit(tmp_path):
    with pytest.raises(ValueError, match="expected"):
        find_main_from(tmp_path / "__main__" / "src" / "monolith" / "util")


@pytest.mark.req("MN-PATH-T2")
def test_the_file_runs_without_site_packages():
    code = f"import runpy; print(runpy.run_path({paths.__file__!r})['find_main']())"
    command = [sys.executable, "-S", "-I", "-c", code]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert result.stdout.strip() == paths.find_main()


def test_the_base_of_this_installation_holds_the_package():
    assert os.path.join(paths.find_main(), "monolith") == os.path.dirname(monolith.__file__)


def test_a_library_path_is_the_base_joined_with_its_name():
    assert paths.get_libops_path("a/b.so") == os.path.join(paths.find_main(), "a/b.so")


def test_the_import_path_of_the_reference_system_gives_the_same_functions():
    assert path_utils.find_main is paths.find_main
    assert path_utils.get_libops_path is paths.get_libops_path
