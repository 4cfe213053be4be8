import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.interrupted import CASES

pytestmark = pytest.mark.dist  # each test starts a process

PROGRAM = Path(__file__).with_name("interrupted.py")


@pytest.mark.parametrize("case", CASES)
def test_ctrl_c_ends_a_wait_of_the_main_thread(case):
    command = [sys.executable, str(PROGRAM), case]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "blocked\n"
        process.send_signal(signal.SIGINT)
        lines = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 0
    assert lines[-1] == "interrupted []"
    assert lines[:-1] == (["clean-up"] if case == "run" else [])
