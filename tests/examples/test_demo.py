import re
import subprocess
import sys

import pytest

from tests.meta.tree import ROOT

pytestmark = pytest.mark.dist


def run_demo(*arguments):
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)


@pytest.fixture(scope="module")
def output():
    result = run_demo("--steps", "12")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def column(output, name):
    return [float(value) for value in re.findall(rf"{name} +([\d.]+)", output)]


def test_the_model_learns(output):
    losses, scores = column(output, "loss"), column(output, "AUC")
    assert losses[-1] < losses[0]
    assert scores[-1] > scores[0] + 0.1


def test_rows_grow_with_the_stream(output):
    rows = [int(count.replace(",", "")) for count in re.findall(r"([\d,]+) \(user\)", output)]
    assert rows == sorted(rows)
    assert rows[-1] > 5000


def test_the_copy_is_equal_and_the_next_command_is_named(output):
    assert re.search(r"Exported [\d,]+ rows and imported them into fresh tables: all equal", output)
    assert "Next: .venv/bin/python examples/demo.py" in output.splitlines()[-1]


def test_two_runs_are_equal(output):
    def without_seconds(text):
        return re.sub(r"Done in \d+ s", "", text)

    assert without_seconds(run_demo("--steps", "12").stdout) == without_seconds(output)


def test_a_wrong_number_of_steps_is_refused_without_a_traceback():
    result = run_demo("--steps", "0")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].endswith("expected --steps of at least 1, got 0")


INTERRUPTED = """
import runpy, signal, sys, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
torch.set_num_threads = lambda number: signal.raise_signal(signal.SIGINT)
sys.argv = ["demo.py"]
runpy.run_path("examples/demo.py", run_name="__main__")
"""


def test_an_interrupted_run_ends_with_one_line():
    command = [sys.executable, "-c", INTERRUPTED]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert result.returncode == 130
    assert result.stderr == "Stopped before the end; nothing was saved.\n"
