"""`monolith launch --print`."""

import pytest
import yaml

from monolith.cli.options.manifest_options import DEFAULT_GRACE_SECONDS
from tests.cli.run import run

KUBERNETES = ("--print", "kubernetes", "--image", "monolith:1")


@pytest.fixture
def launch(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_task.py").write_text("x = 1\n")
    return lambda *arguments: run(capsys, monkeypatch, "launch", *arguments)


def words_of(text, kind):
    objects = {each["kind"]: each for each in yaml.safe_load_all(text)}
    return objects[kind]["spec"]["template"]["spec"]["containers"][0]["args"]


def test_stdout_has_the_objects_and_nothing_else(launch, tmp_path):
    ran = launch("my_task.py", *KUBERNETES)
    assert ran.status == 0
    kinds = [each["kind"] for each in yaml.safe_load_all(ran.out)]
    assert kinds == ["ConfigMap", "Service", "StatefulSet", "Job"]
    assert [path.name for path in tmp_path.iterdir()] == ["my_task.py"]


def test_stdout_has_the_script_and_nothing_else(launch):
    ran = launch("my_task.py", "--print", "slurm")
    assert ran.status == 0
    assert ran.out.startswith("#!/bin/bash\n")
    assert "--keys my-task.keys" in ran.out


def test_stderr_names_the_next_commands(launch):
    ran = launch("my_task.py", *KUBERNETES, "--namespace", "team")
    assert "the job cannot go on after a server dies" in ran.err
    assert "kubectl create secret generic my-task-keys --namespace team --from-file=" in ran.err
    ran = launch("my_task.py", "--print", "slurm", "--checkpoints", "saves", "--keys", "a b")
    assert ran.err == "next: monolith keys new 'a b', and sbatch with what was printed\n"


def test_workers_get_the_options(launch):
    options = ["--data", "d", "--set", "x=1", "--checkpoints", "s3://b/run", "--save-every", "5"]
    options += ["--full-every", "3", "--server-timeout", "7", "--transfer", "float16"]
    words = words_of(launch("my_task.py", "--ps", "2", *KUBERNETES, *options).out, "Job")
    assert " ".join(words) == (
        "worker /etc/monolith/my_task.py --num-workers 1 --keys /run/monolith/keys/job.keys "
        "--server-timeout 7.0 --auto-resume --checkpoints s3://b/run --save-every 5 "
        "--full-every 3 --transfer float16 "
        "--servers my-task-ps-0.my-task-ps:7000,my-task-ps-1.my-task-ps:7000 "
        "--data d --set train.threads=2 --set x=1 --no-hints --index $(INDEX)"
    )


def test_the_task_may_be_in_the_image_only(launch):
    ran = launch("no_such_module.My_Ranker", *KUBERNETES)
    assert ran.status == 0
    assert words_of(ran.out, "Job")[1] == "no_such_module.My_Ranker"
    assert "name: my-ranker-worker" in ran.out


@pytest.mark.parametrize(
    ("options", "seconds"), [((), DEFAULT_GRACE_SECONDS), (("--grace-seconds", "9.5"), 10)]
)
def test_a_save_has_longer_than_on_this_machine(launch, options, seconds):
    words = words_of(launch("my_task.py", *KUBERNETES, *options).out, "StatefulSet")
    assert int(words[words.index("--linger-seconds") + 1]) == seconds


def test_name_cores_and_memory_are_those_of_the_options(launch):
    ran = launch("my_task.py", *KUBERNETES, "--name", "b", "--cpus", "8", "--memory", "64Gi")
    assert "name: b-ps\n" in ran.out
    assert "cpu: 8\n" in ran.out
    assert "memory: 64Gi\n" in ran.out


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--print", "nomad"), "Invalid value for '--print'"),
        (("--print", "kubernetes"), "expected --image NAME:TAG with --print kubernetes, got none"),
        (("--image", "i"), "expected --print kubernetes or slurm with --image, got none"),
        (("--cpus", "2"), "expected --print kubernetes or slurm with --cpus, got none"),
        ((*KUBERNETES, "--tcp"), "expected no --tcp with --print kubernetes, got one"),
        ((*KUBERNETES, "--json"), "expected no --json with --print kubernetes, got one"),
        ((*KUBERNETES, "--run", "r"), "expected no --run with --print kubernetes, got one"),
        ((*KUBERNETES, "--resume"), "expected no --resume with --print kubernetes, got one"),
        (("--print", "slurm", "--image", "i"), "expected no --image with --print slurm, got one"),
        (("--print", "slurm", "--volume", "a=/b"), "expected no --volume with --print slurm"),
        (("--print", "slurm", "--name", "A"), "expected --name of lower-case letters"),
        ((*KUBERNETES, "--volume", "a=/b", "--volume", "a=/c"), "expected different claims"),
        ((*KUBERNETES, "--checkpoints", "/run"), "in a store, or in the folder of a --volume"),
        ((*KUBERNETES, "--settings", "none.json"), "expected a file, got none at 'none.json'"),
    ],
)
def test_wrong_usage_prints_nothing(launch, options, text):
    ran = launch("my_task.py", *options)
    assert (ran.status, ran.out) == (2, "")
    assert text in " ".join(ran.err.replace("│", "").split())


def test_a_task_that_is_missing_is_refused(launch):
    ran = launch("none.py", *KUBERNETES)
    assert (ran.status, ran.out) == (2, "")
    assert "expected a task file or a key module.CLASS, got 'none.py'" in ran.err


def test_a_checkpoint_in_a_volume_is_fine(launch):
    options = ("--volume", "claim=/data", "--checkpoints", "/data/run")
    assert launch("my_task.py", *KUBERNETES, *options).status == 0
