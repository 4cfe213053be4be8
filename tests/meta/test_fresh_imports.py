"""Every import path of the reference system can be the first one of a process."""

import os
import subprocess
import sys

import pytest

from tests.meta.parity import reference_modules
from tests.meta.public_names import PUBLIC_NAMES, find_module
from tests.meta.tree import ROOT

PARITY = (ROOT / "docs" / "parity.md").read_text()
PROGRAM = """
import importlib, os, sys
import fsspec, numpy, pyarrow.compute, pyarrow.parquet, torch

for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(name, error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.thorough
@pytest.mark.req("G-T3")
def test_every_import_path_can_be_the_first_import_of_a_process():
    names = reference_modules(PARITY) | {f"monolith.{name}" for name in PUBLIC_NAMES}
    names = sorted(name for name in names if find_module(name) is not None)
    assert len(names) > 40
    program = [sys.executable, "-c", PROGRAM, *names]
    result = subprocess.run(program, capture_output=True, text=True, env=os.environ, check=True)
    assert result.stdout == ""
