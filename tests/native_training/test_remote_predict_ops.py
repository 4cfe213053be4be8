import subprocess
import sys

import pytest

NAME = "monolith.native_training.remote_predict_ops"


@pytest.mark.req("NT-RPRED-T1")
def test_the_import_loads_the_parent_packages_and_nothing_else():
    code = f"""
import sys
import {NAME} as module
standard = set(dir(type(sys)("empty"))) | {{"__builtins__", "__cached__", "__file__"}}
print(sorted(name for name in sys.modules if name.partition(".")[0] == "monolith"))
print(sorted(set(dir(module)) - standard))
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    loaded, names = output.splitlines()
    assert loaded == str(["monolith", "monolith.native_training", NAME])
    assert names == "[]"
