"""`tools/debian.sh`, with programs of the test in place of those of Debian."""

import os
import subprocess

import pytest

from tests.meta.tree import ROOT

PACKAGES = "libzookeeper-java default-jre-headless"


@pytest.fixture
def run(tmp_path):
    def run(number_of_user="0", installed=False, has_apt=True):
        programs = {
            "dpkg-query": "echo -n installed" if installed else "exit 1",
            "id": f"echo {number_of_user}",
            **({"apt-get": 'echo apt-get "$@"'} if has_apt else {}),
        }
        for name, line in programs.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{line}\n")
            path.chmod(0o755)
        command = ["/bin/bash", str(ROOT / "tools" / "debian.sh")]
        variables = {**os.environ, "PATH": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, env=variables)

    return run


def test_missing_packages_are_installed(run):
    ran = run()
    assert ran.returncode == 0
    assert f"apt-get install -y -qq --no-install-recommends {PACKAGES}\n" in ran.stdout


def test_installed_packages_are_left(run):
    ran = run(installed=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize("options", [{"number_of_user": "1000"}, {"has_apt": False}])
def test_elsewhere_the_packages_are_named(run, options):
    ran = run(**options)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert f"expected {PACKAGES}, got none; tests of ZooKeeper are skipped" in ran.stderr
