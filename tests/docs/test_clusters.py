"""The commands, options and numbers of docs/clusters.md."""

import re
from inspect import signature

import pytest

from monolith.cli.options.manifest_options import DEFAULT_GRACE_SECONDS
from monolith.cli.options.panels import PANELS
from monolith.control import app_master
from monolith.launch.manifests import ClusterJob, cluster_job, kubernetes
from monolith.native_training import yarn_runtime
from tests.docs.pages import blocks, console_cases, first_cells, first_rows, page
from tests.docs.shell import Shell
from tests.docs.test_jobs import parameters

NAME = "docs/clusters.md"
PAGE = page(NAME)


@pytest.fixture(autouse=True)
def no_application_master(monkeypatch):
    for name in ("HOST", "PORT"):
        monkeypatch.delenv(f"PRIMUS_AM_RPC_{name}", raising=False)


def test_the_page_works_from_top_to_bottom(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Shell(tmp_path).run_page(capsys, monkeypatch, NAME)


def test_commands_that_no_test_runs_are_those_that_the_page_names():
    shown = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
    programs = {line.split()[0] for line in shown}
    assert programs == {"monolith", "kubectl", "sbatch", "scancel"}
    printed = {
        case[0].split()[1] for block in blocks(PAGE, "console") for case in console_cases(block)
    }
    assert printed == {"launch"}


def test_the_table_of_options_has_every_option():
    names = [f"--{name}" for name in PANELS["launch"]["Schedulers"]]
    assert sorted(first_cells(PAGE, "| option |")) == sorted(names)


def test_the_defaults_are_those_of_the_code():
    job = signature(ClusterJob).parameters
    defaults = {cells[0].strip("`"): cells[1] for cells in first_rows(PAGE, "| option |")}
    assert defaults["--cpus"] == str(job["cpus"].default)
    assert defaults["--memory"] == job["memory"].default
    assert f"at most {cluster_job.MAX_NAME} |" in PAGE
    assert f"save, {DEFAULT_GRACE_SECONDS:g} seconds unless" in PAGE
    assert f"`--server-timeout` ({cluster_job.SERVER_SECONDS:g} seconds here" in PAGE
    assert f"Port {kubernetes.PORT} has" in PAGE
    assert f"port {kubernetes.METRICS_PORT} `/metrics`" in PAGE


def test_the_limits_are_those_of_the_application_master():
    assert f"`limit_seconds` ({app_master.SAVEPOINT_SECONDS:g})" in PAGE
    assert f"`poll_seconds` ({app_master.POLL_SECONDS:g})" in PAGE
    assert f"deadline of {app_master.CALL_SECONDS:g} s" in PAGE
    calls = [name.partition("(")[0] for name in first_cells(PAGE, "| call |")]
    assert [hasattr(yarn_runtime, name) for name in calls] == [True] * 3


def test_options_of_our_commands_exist():
    known = {name for command in ("launch", "ps", "worker") for name in parameters(command)}
    others = {"--from-file", "--for", "--timeout", "--time", "--partition", "--batch", "--signal"}
    others |= {"--job-name", "--ntasks", "--cpus-per-task", "--mem-per-cpu", "--exact"}
    assert {*re.findall(r"--[a-z][a-z-]+", PAGE)} - known == others
