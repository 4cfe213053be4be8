"""Starts workers (worker.py), one process per system, and sends them commands."""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import ROOT, BenchmarkError, Sample, say

PEERS = ("tfra", "fbgemm")
MODULES = {
    "monolith": "benchmarks.ours",
    "torch": "benchmarks.peers.plain_torch",
    "tfra": "benchmarks.peers.tfra",
    "tfra_packed": "benchmarks.peers.tfra_packed",
    "fbgemm": "benchmarks.peers.fbgemm",
}
_TIMEOUT_SECONDS = 900.0


def interpreter(system: str) -> str:
    """The Python that has the system: ours, or that of the peer's environment."""
    peer = system.partition("_")[0]
    if peer not in PEERS:
        return sys.executable
    path = ROOT / "build" / "peers" / peer / "bin" / "python"
    if not path.exists():
        raise BenchmarkError(
            f"[benchmarks] expected the peer {peer!r} in build/peers, got nothing there; "
            "run: bash benchmarks/peers/install.sh"
        )
    return str(path)


class WorkerProcess:
    """One system in a process of its own, until `close`.

    Args:
        system: its name, which begins with that of the peer whose interpreter it needs.
        command: the module to run and its arguments; without them, the table of the system.
    """

    def __init__(self, system: str, command: Sequence[str] = ()) -> None:
        self.system = system
        settings = {"PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._process = subprocess.Popen(
            [interpreter(system), "-m", *(command or [MODULES[system]])],
            cwd=ROOT,
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Run one command and return its reply."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._dead(do) from error
        if not select.select([self._process.stdout], [], [], _TIMEOUT_SECONDS)[0]:
            self._process.kill()
            raise BenchmarkError(f"[{self.system}] {do}: no answer within {_TIMEOUT_SECONDS:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise self._dead(do)
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise BenchmarkError(f"[{self.system}] {do}: {reply['error']}")
        return reply

    def sample(self, distribution: str) -> Sample:
        """One sample of the stage that the worker was built for."""
        reply = self.call("sample", distribution=distribution)
        return Sample(reply["value"], reply["others_cores"])

    def close(self) -> None:
        """End the process; its memory is free when this returns."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            say(f"[{self.system}] does not end by itself; killed")
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _dead(self, do: str) -> BenchmarkError:
        status = self._process.wait()
        return BenchmarkError(
            f"[{self.system}] {do}: the process ended with status {status}"
            + (" (out of memory?)" if status == -9 else "; its output above says why")
        )
