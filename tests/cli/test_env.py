import functools
import json

import numpy as np
import pytest
import torch

import monolith
from monolith.cli.env import _processor
from monolith.ops.compiled import load_native
from tests.cli.run import run


@pytest.fixture
def command(capsys, monkeypatch):
    return functools.partial(run, capsys, monkeypatch)


def test_env_tells_versions_machine_and_kernels(command):
    facts = json.loads(command("env", "--json").out)
    versions = [facts[name] for name in ("monolith-torch", "torch", "numpy")]
    assert versions == [monolith.__version__, torch.__version__, np.__version__]
    assert facts["kernels"] == load_native().kernels_name()
    assert "-O3" in facts["compiler"]
    assert facts["num_usable_cores"] >= 1
    assert facts["memory_gib"] > 0


def test_env_shows_the_variables_that_matter(command, monkeypatch):
    monkeypatch.setenv("MONOLITH_SET_TRAIN__STEPS", "7")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("PASSWORD", "secret")
    ran = command("env")
    assert "MONOLITH_SET_TRAIN__STEPS=7\n" in ran.out
    assert "OMP_NUM_THREADS=2\n" in ran.out
    assert "secret" not in ran.out


def test_env_is_one_fact_a_line(command):
    ran = command("env")
    (line,) = [line for line in ran.out.splitlines() if line.startswith("torch ")]
    assert line.split() == ["torch", torch.__version__]
    assert "bug report" in ran.err


def test_env_tells_why_the_core_is_missing(command, monkeypatch):
    def missing():
        raise ImportError("no such library")

    monkeypatch.setattr("monolith.ops.compiled.load_native", missing)
    facts = json.loads(command("env", "--json").out)
    assert (facts["kernels"], facts["core"]) == (None, "no such library")


def test_a_package_that_is_not_there_has_no_version(command, monkeypatch):
    monkeypatch.setattr("monolith.cli.env._PACKAGES", ("no-such-package",))
    assert json.loads(command("env", "--json").out)["no-such-package"] is None


def test_a_machine_without_cpuinfo_has_a_name(monkeypatch, tmp_path):
    monkeypatch.setattr("platform.processor", lambda: "riscv")
    assert _processor(str(tmp_path / "none")) == "riscv"
