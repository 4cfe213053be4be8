import io
import json

import pytest
from rich.console import Console

from monolith.launch import JobEnd, JobStatus, JobView, RoleState, RoleStatus

FIGURES = {
    "step": 1_200,
    "samples_per_second": 9_100.0,
    "loss": 0.43218,
    "metrics": {"auc": 0.71234},
    "staleness": 2,
}
JOB = JobStatus(
    12.3,
    (
        RoleStatus("ps-0", "ps", RoleState.RUNNING, 10, 1, "signal SIGKILL", {"rows": 600}),
        RoleStatus("ps-1", "ps", RoleState.STARTING, 11),
        RoleStatus("worker-0", "worker", RoleState.RUNNING, 12, figures=FIGURES),
        RoleStatus("worker-1", "worker", RoleState.WAITING, 13, 0, "exit status 1", FIGURES),
    ),
)


class Gone(io.StringIO):
    def write(self, text):
        raise OSError(5, "Input/output error")


def shown(act, *, is_terminal=False, file=None, **options):
    """What a view prints."""
    file = io.StringIO() if file is None else file
    console = Console(
        file=file, force_terminal=is_terminal, force_interactive=is_terminal, width=80,
        color_system=None,
    )  # fmt: skip
    with JobView(console, **options) as view:
        act(view)
    return file.getvalue()


def test_a_line_has_the_figures_of_all_roles():
    assert shown(lambda view: view.show(JOB)) == (
        "12 s: step 1,200, 9,100 samples/s, 600 rows, 1 restart | ps-0 600 rows | ps-1 starting"
        " | worker-0 9,100 samples/s, loss 0.4322, AUC 0.7123, 2 steps stale"
        " | worker-1 restarting, loss 0.4322, AUC 0.7123, 2 steps stale\n"
    )


def test_a_table_has_a_line_for_each_role():
    text = shown(lambda view: view.show(JOB), is_terminal=True)
    rows = [line.split() for line in text.splitlines()]
    assert ["ps-0", "running", "600", "1"] in rows
    assert ["worker-0", "running", "1,200", "9,100", "0.4322", "0.7123", "2"] in rows
    assert "\u2026" not in text  # nothing is cut off
    assert "12 s, step 1,200, 9,100 samples/s, 600 rows" in text


def test_lines_of_roles_have_the_name_in_front():
    assert shown(lambda view: view.line("ps-0", "[bold] listens")) == "ps-0 | [bold] listens\n"


def test_json_has_an_object_for_each_state_and_the_end(capsys):
    def act(view):
        view.show(JOB)
        view.end(JobEnd(1, "worker-1 failed: exit status 1", JOB, {"ended": "steps"}))

    assert shown(act, is_json=True) == ""
    state, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert (state["event"], state["rows"], state["restarts"]) == ("status", 600, 1)
    assert state["roles"][0] == {
        "name": "ps-0",
        "kind": "ps",
        "state": "running",
        "pid": 10,
        "restarts": 1,
        "last_exit": "signal SIGKILL",
        "figures": {"rows": 600},
    }
    assert (end["event"], end["status"], end["result"]) == ("ended", 1, {"ended": "steps"})
    assert end["reason"] == "worker-1 failed: exit status 1"


def test_a_reader_of_json_that_is_gone_is_an_error(monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Closed())
    with pytest.raises(BrokenPipeError):
        shown(lambda view: view.show(JOB), is_json=True)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_terminal_that_is_gone_is_no_error(is_terminal):
    def act(view):
        view.note("SIGHUP")
        view.show(JOB)
        view.end(JobEnd(129, "ended by SIGHUP", JOB))

    with JobView(Console(file=io.StringIO(), force_terminal=is_terminal)) as view:
        view._console.file = Gone()
        act(view)


def test_text_that_a_terminal_cannot_show_is_escaped():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    with JobView(Console(file=file, color_system=None)) as view:
        view.line("ps-0", "caf\u00e9")
    assert file.buffer.getvalue() == b"ps-0 | caf\\xe9\n"
