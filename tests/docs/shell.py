"""`Shell`: the commands of a page that begin processes."""

import doctest
import re
import shlex
import signal
import subprocess
import sys

from tests.docs.pages import check_command, console_cases, page


class Shell:
    """Runs the commands of a console block; `&` begins a process, and `kill %1` ends the first.

    Args:
        folder: Working directory of the processes.
        addresses: Address on the page -> address in its place.
    """

    def __init__(self, folder, addresses=None):
        self._folder, self._servers, self._addresses = folder, [], addresses or {}

    def run_page(self, capsys, monkeypatch, name):
        """Run the Python and console blocks of a page from top to bottom."""
        for kind, text in re.findall(r"^```(python|console)\n(.*?)^```$", page(name), re.M | re.S):
            if kind == "python":
                exec(compile(text, name, "exec"), {})
            for command, shown in console_cases(text) if kind == "console" else ():
                self.run(capsys, monkeypatch, command, shown)

    def run(self, capsys, monkeypatch, command, shown):
        for old, new in self._addresses.items():
            command, shown = command.replace(old, new), shown.replace(old, new)
        if command.endswith(" &"):
            arguments = shlex.split(command.removesuffix(" &"))[1:]
            process = subprocess.Popen(
                [sys.executable, "-m", "monolith.cli.main", *arguments],
                cwd=self._folder,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._servers.append(process)
            self._check(process.stderr.readline(), shown)
        elif command.startswith("kill %"):
            process = self._servers[int(command.removeprefix("kill %")) - 1]
            process.send_signal(signal.SIGTERM)
            self._check(process.stderr.readline(), shown)
            assert process.wait(60) == 0
        else:
            check_command(capsys, monkeypatch, command, shown)

    def _check(self, printed, shown):
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.OutputChecker().check_output(shown.strip(), printed.strip(), flags), printed

    def wait(self):
        """Wait until the processes have ended by themselves, with status 0."""
        for process in self._servers:
            process.communicate(timeout=60)
            assert process.returncode == 0

    def close(self):
        for process in self._servers:
            process.kill()
            process.wait(60)
            process.stderr.close()
