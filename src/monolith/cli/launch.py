"""`monolith launch`: run a job on one machine."""

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from monolith.cli.console import fail, say
from monolith.cli.options import run_options as options
from monolith.environment import variables
from monolith.errors import FailedPreconditionError
from monolith.launch import (
    JobCommands,
    JobEnd,
    JobView,
    Policy,
    RankCommands,
    RankJob,
    RunFolder,
    Supervisor,
    folder_state,
)
from monolith.launch.job_commands import PROGRAM, THREADS_KEY, threads_per_worker
from monolith.util.layered_settings import SETTING_PREFIX, file_keys
from monolith.util.stores import local_path

app = typer.Typer(add_completion=False)

_KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_RESUME = "--resume"


@app.command(
    help="Example: monolith launch ranker.py --ps 2 --workers 2 --data clicks/\n\n"
    "Run servers and workers of a job here, restart those that die, and end all. With --ranks N, "
    "run synchronous ranks in their place.",
    short_help="Run servers and workers, or ranks, on this machine.",
)
def launch(
    task: options.TaskArgument,
    ps: Annotated[
        int | None, typer.Option(min=1, metavar="P", help="Number of servers, 1 by default.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="W", help="Number of workers, 1 by default.")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of synchronous ranks, in place of both."),
    ] = None,
    data: options.Data = None,
    settings: options.Settings = None,
    file: options.SettingsFile = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Folder of the logs and addresses."),
    ] = None,
    checkpoints: options.Checkpoints = None,
    save_every: options.SaveEvery = None,
    save_seconds: options.SaveSeconds = None,
    full_every: options.FullEvery = None,
    save_rate: options.SaveRate = None,
    resume: options.Resume = False,
    restarts: Annotated[int, typer.Option(min=0, metavar="N", help="Restarts of a role.")] = 3,
    grace_seconds: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds until SIGKILL.")
    ] = 10.0,
    server_timeout: options.ServerTimeout = None,
    rank_timeout: options.RankTimeout = 300.0,
    transfer: options.Transfer = None,
    tcp: Annotated[bool, typer.Option("--tcp", help="Listen at ports, not sockets.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a job on this machine until its workers end, or until Ctrl-C or SIGTERM."""
    _check_task(task)
    if ranks is not None and (ps is not None or workers is not None or tcp):
        fail("expected --ranks without --ps, --workers and --tcp, got both", status=2)
    num_roles = ranks or (ps or 1) + (workers or 1)
    threads = None if _has_threads(settings or [], file) else threads_per_worker(num_roles)
    saving = {
        "--checkpoints": checkpoints,
        "--save-every": save_every,
        "--save-seconds": save_seconds,
        "--full-every": full_every,
        "--save-rate": save_rate,
        _RESUME: resume,
        **({"--server-timeout": server_timeout} if ranks is None else {}),
        **({} if ranks is None else {"--rank-timeout": rank_timeout}),
        "--transfer": transfer,
    }
    common = (data or (), settings or (), file)
    commands: JobCommands | RankCommands
    if ranks is not None:
        commands = RankCommands(task, ranks, *common, saving, num_threads=threads, program=PROGRAM)
        size = f"{ranks} rank{'s' * (ranks > 1)}"
    else:
        num_servers, num_workers = ps or 1, workers or 1
        commands = JobCommands(
            task,
            num_servers,
            num_workers,
            *common,
            saving,
            with_tcp=tcp,
            num_threads=threads,
            program=PROGRAM,
        )
        size = f"{num_servers} server{'s' * (num_servers > 1)} and {num_workers} "
        size += f"worker{'s' * (num_workers > 1)}"
    folder = _open_folder(run, checkpoints)
    end = None
    try:
        words = "" if threads is None else f" with {THREADS_KEY}={threads}"
        say(f"{size}{words}; logs: {folder.logs}")
        policy = Policy(restarts, grace_seconds=grace_seconds)
        saves = None if checkpoints is None else local_path(checkpoints)
        with JobView(Console(stderr=True), is_json=as_json) as view:
            end = _run(commands, folder, view, policy, lambda: folder_state(saves))
            view.end(end)
    finally:
        folder.close(is_success=end is not None and end.status == 0)
    has_saved = checkpoints is not None and _has_checkpoint(saves)
    _end(end, folder, checkpoints if has_saved else None)


def _run(
    commands: JobCommands | RankCommands,
    folder: RunFolder,
    view: JobView,
    policy: Policy,
    save_state: Callable[[], Any],
) -> JobEnd:
    """Run the roles of a job until their end."""
    if isinstance(commands, RankCommands):
        return RankJob(commands, folder, view, policy, save_state=save_state).run()
    roles = commands.roles(folder)
    return Supervisor(roles, folder.logs, view, policy, save_state=save_state).run()


def _check_task(task: str) -> None:
    """Refuse a task without a file or a module; the roles load the task, not the launcher."""
    path, _, name = task.partition(".py:")
    file = Path(f"{path}.py" if name else path)
    if file.is_file():
        return
    is_key = file.suffix != ".py" and _KEY.fullmatch(task) is not None
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not is_key or importlib.util.find_spec(task.partition(".")[0]) is None:
        fail(f"expected a task file or a key module.CLASS, got {task!r}; no such file", status=2)


def _has_threads(settings: list[str], file: str | None) -> bool:
    """Whether the user sets the number of threads of a worker."""
    variable = SETTING_PREFIX + THREADS_KEY.upper().replace(".", "__")
    try:
        keys = set() if file is None else file_keys(file)
    except (OSError, ValueError) as error:
        fail(str(error), status=2)
    keys |= {text.partition("=")[0].strip() for text in settings}
    return THREADS_KEY in keys or variable in variables(SETTING_PREFIX)


def _open_folder(run: str | None, checkpoints: str | None) -> RunFolder:
    """Make and lock the run folder, and make the folder of checkpoints."""
    saves = None if checkpoints is None else local_path(checkpoints)
    path = saves
    try:
        if saves is not None:
            os.makedirs(saves, exist_ok=True)
            if not os.access(saves, os.W_OK):
                raise PermissionError(None, "Permission denied")
        path = run
        return RunFolder(run)
    except FailedPreconditionError as error:
        fail(str(error), status=2)
    except OSError as error:
        fail(f"expected a folder that can be written, got {path!r}: {error.strerror}", status=2)


def _has_checkpoint(saves: str | None) -> bool:
    """Whether a folder of this machine has a checkpoint; true for a store, which is not read."""
    return saves is None or any(Path(saves).glob("*.manifest.json"))


def _end(end: JobEnd, folder: RunFolder, checkpoints: str | None) -> NoReturn:
    """Print exit code, reason and the next step, and exit.

    Args:
        end: End of the job.
        folder: Folder of the logs.
        checkpoints: Folder with a checkpoint of the job; None without one.
    """
    num = end.job.num_restarts
    facts = f"{end.job.seconds:.0f} s, {num} restart{'' if num == 1 else 's'}"
    is_removed = folder.is_temporary and end.status == 0
    logs = "" if is_removed else f"; logs: {folder.logs}"
    lines = []
    if checkpoints is not None and not end.status:
        lines = [f"next: monolith inspect {shlex.quote(checkpoints)}"]
    elif checkpoints is not None:
        words = [word for word in sys.argv[1:] if word != _RESUME]
        lines = [f"to go on: {shlex.join(['monolith', *words, _RESUME])}"]
    say("\n".join([*lines, f"exit {end.status}: {end.reason} ({facts}){logs}"]))
    sys.exit(end.status)
