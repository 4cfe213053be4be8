"""Options that several commands share: the task, its data and settings, its checkpoints."""

from typing import Annotated, Any

import typer

from monolith.cli.console import fail

TaskArgument = Annotated[str, typer.Argument(help="Task file, FILE.py:CLASS, or module.CLASS.")]
Data = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH",
        help="Parquet file, folder or glob to train on. `eval=PATH` adds held-out data.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: batch_size=512."),
]
SettingsFile = Annotated[
    str | None,
    typer.Option("--settings", metavar="FILE", help="Settings in a .toml or .json file."),
]
Checkpoints = Annotated[
    str | None, typer.Option(metavar="DIR", help="Save checkpoints in this folder.")
]
SaveEvery = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Save a checkpoint every N steps.")
]
SaveSeconds = Annotated[
    float | None, typer.Option(metavar="S", help="Save a checkpoint every S seconds.")
]
FullEvery = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Save only changed rows, N times per full one."),
]
SaveRate = Annotated[
    float | None, typer.Option(metavar="MB/S", help="Limit of saves while training goes on.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint.")]
AutoResume = Annotated[
    bool,
    typer.Option("--auto-resume", help="Continue from the newest checkpoint, if there is one."),
]
Fallback = Annotated[
    bool, typer.Option("--fallback", help="With --resume, skip damaged checkpoints.")
]
NumServers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of servers in a discovery as --servers."),
]
Keys = Annotated[str | None, typer.Option(metavar="FILE", help="CURVE keys of the servers.")]
Transfer = Annotated[
    str | None,
    typer.Option(metavar="DTYPE", help="Send rows and gradients as float16 or bfloat16."),
]
ServerTimeout = Annotated[
    float | None,
    typer.Option(metavar="S", help="Seconds that a call waits for a server, 30 by default."),
]
TensorBoard = Annotated[
    str | None, typer.Option(metavar="DIR", help="Event files for TensorBoard.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Port of a page for Prometheus."),
]
MetricsHost = Annotated[str | None, typer.Option(metavar="HOST", help="Address of --metrics-port.")]
MetricsFile = Annotated[
    str | None, typer.Option(metavar="PATH", help="Append metrics as JSON lines.")
]
Profile = Annotated[
    str | None, typer.Option(metavar="STEPS", help="Trace steps=10, or from=500,steps=10.")
]
ProfileDir = Annotated[str | None, typer.Option(metavar="DIR", help="Write traces in this folder.")]
Alert = Annotated[
    list[str] | None, typer.Option(metavar="RULE", help="Warn if, for example, 'loss>1.5'.")
]
NoHints = Annotated[
    bool,
    typer.Option(
        "--no-hints", hidden=True, help="Name no next commands; `monolith launch` names its own."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines on stdout.")]


def setting_flags(
    data: list[str] | None,
    checkpoints: str | None,
    settings: list[str] | None,
    alerts: list[str] | None = None,
    **saves: Any,
) -> list[str]:
    """Return the options as settings KEY=VALUE; those of --set come last.

    Example:
        >>> setting_flags(["clicks"], None, ["batch_size=8"], save_every=10)
        ['data.train=clicks', 'train.save_every=10', 'batch_size=8']
    """
    flags = [f"data.{path if '=' in path else 'train=' + path}" for path in data or ()]
    flags += [] if checkpoints is None else [f"train.checkpoint_dir={checkpoints}"]
    flags += [f"train.alerts={','.join(alerts)}"] if alerts else []
    flags += [f"train.{name}={value}" for name, value in saves.items() if value is not None]
    return [*flags, *(settings or ())]


def check_saves(directory: str | None, **saves: Any) -> None:
    """Refuse options of saves without a folder for checkpoints.

    Args:
        directory: folder of the resolved settings.
        saves: options by their names in Python.
    """
    for name, value in saves.items():
        if value is not None and directory is None:
            fail(f"expected --checkpoints DIR with --{name.replace('_', '-')}, got none", 2)
