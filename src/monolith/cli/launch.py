"""`monolith launch`: run a job on one machine."""

import importlib.util
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, NoReturn

import typer
from rich.console import Console

from monolith.cli.console import fail, say
from monolith.cli.options import control_options as controls
from monolith.cli.options import run_options as options
from monolith.cli.options.manifest_options import (
    DEFAULT_GRACE_SECONDS,
    KUBERNETES,
    ManifestOptions,
)
from monolith.cli.options.service_options import DataService
from monolith.cli.options.stream_options import check_workers
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
    "run synchronous ranks in their place; with --print, write the job for Kubernetes or Slurm "
    "to stdout.",
    short_help="Run servers and workers, or ranks, on this machine.",
)
def launch(
    context: typer.Context,
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
    data_service: DataService = None,
    settings: options.Settings = None,
    file: options.SettingsFile = None,
    device: options.Device = None,
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
    alert: options.Alert = None,
    control: controls.Control = None,
    discovery: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Roles find each other here: zk://HOST:PORT/JOB."),
    ] = None,
    tcp: Annotated[bool, typer.Option("--tcp", help="Listen at ports, not sockets.")] = False,
    as_json: options.AsJson = False,
    print: Annotated[  # noqa: A002 -- the name of the option
        Literal["kubernetes", "slurm"] | None,
        typer.Option("--print", help="Print the job for a scheduler instead of running it."),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the job.")] = None,
    image: Annotated[
        str | None, typer.Option(metavar="NAME:TAG", help="Image with monolith, for Kubernetes.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Namespace, for Kubernetes.")
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(metavar="CLAIM=/PATH", help="Claim of a volume, and its folder in the pods."),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Secret with job.keys, or file of keys for Slurm."),
    ] = None,
    cpus: Annotated[int | None, typer.Option(min=1, metavar="N", help="Cores of a role.")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of a role, such as 4Gi.")
    ] = None,
) -> None:
    """Run a job on this machine until its workers end, or until Ctrl-C or SIGTERM."""
    manifest = ManifestOptions(print, name, image, namespace, volume or (), keys, cpus, memory)
    local = {"--tcp": tcp, "--json": as_json, _RESUME: resume, "--discovery": discovery}
    manifest.check({**local, "--run": run if print == KUBERNETES else None})
    _check_task(task, may_be_elsewhere=print is not None)
    if device is not None and print is None:
        options.check_device(device)
    if ranks is not None:
        _refuse_with_ranks(
            {
                "--ps": ps,
                "--workers": workers,
                "--tcp": tcp,
                "--print": print,
                "--discovery": discovery,
                "--data-service": data_service,
                "--control": control,
                "--server-timeout": server_timeout,
            }
        )
    found = FoundBy() if discovery is None else _found_by(discovery, context)
    ps, workers = found.sizes or (ps or 1, workers or 1)
    check_workers(data or (), ranks or workers)
    role_options = {
        "--device": device,
        "--checkpoints": checkpoints,
        "--save-every": save_every,
        "--save-seconds": save_seconds,
        "--full-every": full_every,
        "--save-rate": save_rate,
        _RESUME: resume,
        "--server-timeout": server_timeout,
        "--rank-timeout": None if ranks is None else rank_timeout,
        "--transfer": transfer,
        "--control": control is True,
        "--no-control": control is False,
        "--data-service": data_service,
    }
    if alert:
        settings = [f"train.alerts={','.join(alert)}", *(settings or ())]
    has_threads = _has_threads(settings or [], file)
    if print is not None:
        source = context.get_parameter_source("grace_seconds")
        is_default = source is not None and source.name == "DEFAULT"
        manifest.print_job(
            task,
            run,
            num_servers=ps,
            num_workers=workers,
            data=data or (),
            settings=settings or (),
            settings_file=file,
            worker_options=role_options,
            restarts=restarts,
            grace_seconds=math.ceil(DEFAULT_GRACE_SECONDS if is_default else grace_seconds),
            has_threads=has_threads,
        )
        return
    threads = None if has_threads else threads_per_worker(ranks or ps + workers)
    common = (data or (), settings or (), file, role_options)
    commands: JobCommands | RankCommands
    if ranks is not None:
        commands = RankCommands(task, ranks, *common, num_threads=threads, program=PROGRAM)
    else:
        commands = JobCommands(
            task,
            ps,
            workers,
            *common,
            discovery=discovery,
            environment_of=found.environment_of,
            with_tcp=tcp or found.needs_tcp,
            num_threads=threads,
            program=PROGRAM,
        )
    policy = Policy(restarts, grace_seconds=grace_seconds)
    _run(commands, _open_folder(run, checkpoints), policy, checkpoints, as_json=as_json)


class FoundBy(NamedTuple):
    """What a discovery says about the roles of a job.

    Args:
        sizes: Numbers of servers and workers, where they are fixed.
        environment_of: Returns the variables of a role, where its place is fixed.
        needs_tcp: Whether servers need ports.
    """

    sizes: tuple[int, int] | None = None
    environment_of: Callable[[str, int], Mapping[str, str]] | None = None
    needs_tcp: bool = False


def _found_by(uri: str, context: typer.Context) -> FoundBy:
    """Read a discovery that fixes the places of the roles; the others are opened by the roles."""
    from monolith.cli.options.discovery_options import opened, place, refuse_others
    from monolith.cluster.discovery.uris import check_uri

    fixed = place(uri)
    if fixed is None:
        try:
            return FoundBy(needs_tcp=not check_uri(uri).is_folder)
        except ValueError as error:
            fail(str(error), status=2)
    sizes = fixed.sizes["ps"], fixed.sizes["worker"]
    refuse_others(uri, context, dict(zip(("ps", "workers"), sizes, strict=True)))
    return FoundBy(sizes, opened(uri).environment_of)


def _refuse_with_ranks(others: Mapping[str, object]) -> None:
    """End the program if one of the options that do not fit `--ranks` is given."""
    for option, value in others.items():
        if value:
            fail(f"expected no {option} with --ranks, got one", status=2)


def _run(
    commands: JobCommands | RankCommands,
    folder: RunFolder,
    policy: Policy,
    checkpoints: str | None,
    *,
    as_json: bool,
) -> NoReturn:
    """Run the roles of a job until their end, and exit."""
    end = None
    try:
        threads = commands.num_threads
        words = "" if threads is None else f" with {THREADS_KEY}={threads}"
        say(f"{commands.size}{words}; logs: {folder.logs}")
        saves = None if checkpoints is None else local_path(checkpoints)
        with JobView(Console(stderr=True), is_json=as_json) as view:
            job: RankJob | Supervisor
            if isinstance(commands, RankCommands):
                job = RankJob(
                    commands, folder, view, policy, save_state=lambda: folder_state(saves)
                )
            else:
                roles = commands.roles(folder)
                job = Supervisor(
                    roles, folder.logs, view, policy, save_state=lambda: folder_state(saves)
                )
            end = job.run()
            view.end(end)
    finally:
        folder.close(is_success=end is not None and end.status == 0)
    has_saved = checkpoints is not None and _has_checkpoint(saves)
    _end(end, folder, checkpoints if has_saved else None)


def _check_task(task: str, *, may_be_elsewhere: bool) -> None:
    """Refuse a task without a file or a module; the roles load the task, not the launcher.

    Args:
        task: File or key.
        may_be_elsewhere: Whether a module may be missing here.
    """
    path, _, name = task.partition(".py:")
    file = Path(f"{path}.py" if name else path)
    if file.is_file():
        return
    is_key = file.suffix != ".py" and _KEY.fullmatch(task) is not None
    if is_key and may_be_elsewhere:
        return
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
