"""Jobs of stand-ins, and a view that acts on what the launcher shows."""

import sys
from pathlib import Path

from monolith.launch import Policy, Role, RoleState, Supervisor

STAND_IN = str(Path(__file__).with_name("stand_in.py"))


class Probe:
    """A view that keeps what it gets, and calls a function with every state of the job."""

    interval_seconds = 0.02

    def __init__(self, act=lambda status: None):
        self.act, self.lines, self.notes, self.statuses = act, [], [], []

    def line(self, name, text):
        self.lines.append((name, text))

    def note(self, text):
        self.notes.append(text)

    def show(self, status):
        self.statuses.append(status)
        self.act(status)


def role(kind, index, folder, *options):
    words = (sys.executable, "-S", STAND_IN, f"{kind}-{index}", str(folder), *options)
    return Role(kind, index, words)


def job(folder, act=None, *, roles=None, save_state=lambda: None, **policy):
    """Run a job of a server and two workers; its end and the view."""
    roles = roles or [role("ps", 0, folder), *(role("worker", i, folder) for i in range(2))]
    view = Probe(act or stop_when_running(folder))
    how = Policy(**{"pause_seconds": 0.02, "server_seconds": 0.1, "grace_seconds": 20.0, **policy})
    supervisor = Supervisor(roles, str(folder), view, how, save_state=save_state)
    return supervisor.run(), view


def are_running(status, num_restarts=0):
    states = {role.state for role in status.roles}
    return states == {RoleState.RUNNING} and status.num_restarts >= num_restarts


def stop_when_running(folder, num_restarts=0):
    """An act that lets the stand-ins end when all run after so many restarts."""

    def act(status):
        if are_running(status, num_restarts):
            (folder / "STOP").touch()

    return act


def once_running(action):
    """An act that calls a function with the first state in which all run."""
    done = []

    def act(status):
        if are_running(status) and not done:
            done.append(True)
            action(status)

    return act


def events(folder):
    path = folder / "events"
    return path.read_text().splitlines() if path.exists() else []


def is_gone(pid):
    """Whether a process has ended, collected or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"
