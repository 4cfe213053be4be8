"""The script for sbatch, checked by bash."""

import shlex
import subprocess

import pytest

from monolith.launch.manifests import ClusterJob, slurm_script

HOSTILE = [
    "$(touch /tmp/x)",
    "a b",
    "'",
    '"',
    "`x`",
    "%name",
    "\n#SBATCH --time=1",
    "${x",
    "é",
    "!",
]


def script(run=None, *, size=(2, 3), **fields):
    return slurm_script(ClusterJob("clicks", "task.py", *size, keys="job.keys", **fields), run)


@pytest.mark.parametrize("size", [(1, 1), (2, 3)])
@pytest.mark.parametrize("run", [None, "a b'c"])
@pytest.mark.parametrize(
    "fields", [{}, {"data": HOSTILE, "settings": HOSTILE}, {"memory": "512Mi", "cpus": 3}]
)
def test_bash_reads_the_script(size, run, fields):
    text = script(run, size=size, **fields)
    checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_values_are_words_for_bash():
    (line,) = [
        line
        for line in script(data=["x"], settings=["a=$(b) 'c'"]).split(" &\n")
        if "--index 0" in line
    ]
    words = shlex.split(line[line.index("monolith worker") :])
    assert words[words.index("--set", words.index("train.threads=2")) + 1] == "a=$(b) 'c'"


def test_no_value_is_an_option_of_sbatch():
    lines = [line for line in script(data=HOSTILE).splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --ntasks=5" in lines
    head = script().split("set -u")[0].splitlines()
    assert [line for line in lines if line in head] == [
        line for line in head if line.startswith("#SBATCH")
    ]


@pytest.mark.parametrize(("memory", "cpus", "per_cpu"), [("4Gi", 2, 2048), ("1000Mi", 3, 334)])
def test_cores_have_parts_of_the_memory(memory, cpus, per_cpu):
    assert f"#SBATCH --mem-per-cpu={per_cpu}M\n" in script(memory=memory, cpus=cpus)


def test_one_worker_has_no_step_of_others():
    assert script(size=(1, 1)).count("monolith worker") == 1
    assert script(size=(1, 3)).count("monolith worker") == 2


def test_only_a_job_that_saves_is_tried_again():
    assert "scontrol requeue" not in script()
    assert "scontrol requeue" in script(worker_options={"--checkpoints": "saves"})


def test_a_run_folder_is_that_of_the_user():
    assert "run='a b'  #" in script("a b")
