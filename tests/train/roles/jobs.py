"""Jobs of real processes, forked by a nursery, and what their records say."""

import contextlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from monolith.checkpoint import Checkpoint, find
from monolith.launch import RunFolder
from monolith.launch.job_commands import JobCommands
from tests.train.roles.job_tasks import wait_for
from tests.train.roles.role_client import connect_role
from tests.train.roles.role_records import STRIKES, pid_of

ROOT = Path(__file__).parents[3]
TASKS = Path(__file__).with_name("job_tasks.py")
CLIENT = Path(__file__).with_name("role_client.py")


class Nursery:
    """Starts roles of jobs; all are killed at its end."""

    def __init__(self):
        self._folder = tempfile.mkdtemp(prefix="job")
        self.path = f"{self._folder}/socket"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.train.roles.role_nursery", self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout.readline() == "ready\n"
        self._num_jobs = 0

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        shutil.rmtree(self._folder)

    def job(self, data, num_servers=2, num_workers=2, **options):
        """Return a new job; see `Job`."""
        self._num_jobs += 1
        folder = Path(self._folder, str(self._num_jobs))
        folder.mkdir()
        return Job(self, folder, data, num_servers, num_workers, **options)


class Role:
    """A running command.

    Attributes:
        name: Name of the role, such as "ps-0".
        pid: Its process.
    """

    def __init__(self, nursery, folder, name, arguments, **more):
        self.name, self._paths = name, [folder / f"{name}.{part}" for part in ("out", "err")]
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(open(path, "ab")) for path in self._paths]
            self._connection, self._lines, self.pid = connect_role(
                nursery.path, str(folder), arguments, [file.fileno() for file in files], **more
            )
        self._connection.settimeout(180)
        self._status = None

    def signal(self, number):
        os.kill(self.pid, number)

    def wait(self):
        """Return the exit status."""
        if self._status is None:
            self._status = json.loads(self._lines.readline())["status"]
            self.close()
        return self._status

    def close(self):
        """Kill the role if it runs."""
        self._lines.close()
        self._connection.close()

    @property
    def errors(self):
        return self._paths[1].read_text()

    @property
    def lines(self):
        """JSON objects that it has printed."""
        lines = self._paths[0].read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    @property
    def result(self):
        """Object of the end."""
        return self.lines[-1]


class Job:
    """A job in a folder of its own. Use it in a `with`.

    Args:
        nursery: Starts the processes.
        folder: Folder of the job.
        data: File with the samples.
        num_servers: Number of servers.
        num_workers: Number of workers.
        task: Name of the task's class in `job_tasks.py`.
        record: Whether the servers keep all updates of tables and dense parameters.
        settings: Setting -> value; a dot in the name is written as two underscores.
    """

    def __init__(
        self,
        nursery,
        folder,
        data,
        num_servers,
        num_workers,
        *,
        task="Counted",
        record=False,
        settings=(),
        **options,
    ):
        self.nursery, self.folder, self.saves = nursery, folder, folder / "saves"
        self.num_servers, self.num_workers = num_servers, num_workers
        if record:
            (folder / "record").touch()
        self._run = RunFolder(str(folder / "run"))
        values = {"folder": folder, "train.threads": 1, **dict(settings)}
        options = {"--checkpoints": str(self.saves), "--save-every": 0} | options
        self.commands = JobCommands(
            f"{TASKS}:{task}",
            num_servers,
            num_workers,
            data=[data],
            settings=[f"{name}={value}" for name, value in values.items()],
            worker_options=options,
        )
        self.roles = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for role in self.roles.values():
            role.close()
        self._run.close(is_success=False)
        if error[1] is not None:
            for role in self.roles.values():
                print(f"--- {role.name}\n{role.errors[-3000:]}")

    def pause(self, *steps):
        """Let each worker wait after some of its steps: one list of numbers for each worker."""
        values = {f"worker-{worker}.1": list(numbers) for worker, numbers in enumerate(steps)}
        (self.folder / "pause").write_text(json.dumps(values))

    def meet(self, place, workers):
        """Wait until workers are at a pause."""
        for worker in workers:
            self.wait_for((self.folder / f"worker-{worker}.1.waits-{place}").exists)

    def go(self, place):
        """Let all workers go on from a pause."""
        (self.folder / f"go-{place}").touch()

    def strike(self, *strikes):
        """Let the chief kill roles, one after another, at moments: (role, moment) each.

        It kills at its first save after the kill before.
        """
        plans = [{"target": target, "moment": moment, "save": 1} for target, moment in strikes]
        (self.folder / STRIKES).write_text(json.dumps(plans))

    def start(self, name, *more):
        """Start a role."""
        for role in self.commands.roles(self._run):
            if role.name == name:
                words = [*role.command[len(self.commands.program) :], *more]
                self.roles[name] = Role(self.nursery, self.folder, name, words)
        return self.roles[name]

    def start_all(self, *more):
        """Start all roles; `more` are further words of the workers."""
        for role in self.commands.roles(self._run):
            self.start(role.name, *(more if role.kind == "worker" else ()))
        return self

    def wait(self, name="worker-0"):
        """Wait for the ends, which are successes, and return the last object of a role."""
        for _, role in sorted(self.roles.items(), reverse=True):  # workers first
            assert role.wait() == 0, f"{role.name}: {role.errors[-2000:]}"
        return self.roles[name].result

    def run(self, *more):
        """Run the job to its end; no worker makes a second step before all have made one.

        A worker that is slow to start would otherwise find that the others have ended the job.
        """
        self.pause(*[[1]] * self.num_workers)
        self.start_all(*more).meet(0, range(self.num_workers))
        self.go(0)
        return self.wait()

    def launch(self, *more):
        """Run the job to its end by `monolith launch`; return the last object."""
        size = ["--ps", self.num_servers, "--workers", self.num_workers, "--run", self.folder / "r"]
        data = ["--data", *self.commands.data, "--json"]
        options = [word for pair in self.commands.worker_options.items() for word in pair]
        settings = [word for text in self.commands.settings for word in ("--set", text)]
        words = ["launch", self.commands.task, *size, *data, *options, *settings, *more]
        self.roles["launch"] = Role(
            self.nursery,
            self.folder,
            "launch",
            list(map(str, words)),
            program=[sys.executable, "-S", "-E", str(CLIENT), self.nursery.path, str(self.folder)],
        )
        return self.wait("launch")

    def has_begun(self, name, num_steps=1):
        """Whether a start of a worker has made a number of steps."""
        path = self.folder / "began" / name
        return path.exists() and int(path.read_text() or 0) >= num_steps

    def wait_for(self, is_true):
        wait_for(is_true)

    def kill(self, name):
        self.roles[name].signal(signal.SIGKILL)
        return self.roles[name].wait()

    def signal_role(self, name, number=signal.SIGKILL):
        """Send a signal to the newest start of a role, also of one that `launch` has started."""
        os.kill(self.pid_of(name), number)

    def pid_of(self, name):
        return pid_of(self.folder, name)

    # Records

    def lives(self, name):
        """Return what each start of a server has noted."""
        paths = (self.folder / "steps").glob(f"{name}.*")
        ordered = sorted(paths, key=lambda path: int(path.suffix[1:]))
        return [[json.loads(line) for line in path.read_text().splitlines()] for path in ordered]

    def dense(self, server):
        return pickle.loads((self.folder / f"dense-ps-{server}.1").read_bytes())


def checkpoints(folder):
    """Return the prefixes of the checkpoints of a folder, by their steps."""
    prefixes = [str(path).removesuffix(".manifest.json") for path in folder.glob("*.manifest.json")]
    return sorted(prefixes, key=lambda prefix: int(prefix.rpartition("-")[2]))


def counts_of(saves):
    """Return how often each sample was trained, as the rows of the newest checkpoint say."""
    checkpoint = find(saves) if Path(saves).is_dir() else Checkpoint(saves)
    counts = {}
    for chunk in checkpoint.load_tables()["sample"].export():
        (weights,) = [c for name, c in chunk.columns.items() if "weight" in name]
        for key, weight in zip(chunk.keys.tolist(), weights.flatten().tolist(), strict=True):
            counts[key] = round(-weight)
    return dict(sorted(counts.items()))
