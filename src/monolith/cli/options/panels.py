"""Panels of a help page that is long: options of one purpose lie together."""

from types import MappingProxyType
from typing import Any

_TRAINING = MappingProxyType(
    {
        "Servers": (
            *("data_service", "servers", "num_servers", "keys", "transfer", "server_timeout"),
        ),
        "Checkpoints": (
            *("checkpoints", "save_every", "save_seconds", "full_every", "save_rate"),
            *("resume", "fallback"),
        ),
        "Metrics and profiles": (
            *("tensorboard", "metrics_port", "metrics_host", "metrics_file"),
            *("profile", "profile_dir"),
        ),
        "Control and alerts": ("control", "control_bind", "control_tls", "alert"),
    }
)

PANELS = MappingProxyType(
    {
        "train": MappingProxyType(
            {
                "Servers": _TRAINING["Servers"],
                "Streams": ("stream", "stream_start", "backfill", "batch_seconds"),
                "Ranks": ("mode", "rank_timeout"),
                **_TRAINING,
            }
        ),
        "worker": MappingProxyType(
            {**_TRAINING, "Checkpoints": (*_TRAINING["Checkpoints"], "auto_resume")}
        ),
        "launch": MappingProxyType(
            {
                "Job": ("ps", "workers", "ranks", "run", "restarts", "grace_seconds"),
                "Checkpoints": _TRAINING["Checkpoints"][:-1],  # without fallback
                "Servers and ranks": (
                    *("discovery", "tcp", "server_timeout", "rank_timeout", "transfer"),
                ),
                "Control and alerts": ("control", "alert"),
                "Schedulers": (
                    *("print", "name", "keys", "cpus", "memory"),
                    *("image", "namespace", "volume"),
                ),
            }
        ),
        "ps": MappingProxyType(
            {
                "Address and keys": ("bind", "discovery", "keys", "insecure"),
                "Work": ("threads", "call_threads", "linger_seconds", "drain_seconds"),
                "Metrics": ("metrics_port", "metrics_host"),
            }
        ),
    }
)
"""Command -> title of each panel beside "Options" -> names of the parameters that it shows."""


def set_panels(command: Any) -> None:
    """Show the options of a command in its panels; the others stay under "Options".

    Args:
        command: Command of Typer, with its name.
    """
    panels = PANELS.get(command.name, MappingProxyType({}))
    panel_of = {name: panel for panel, names in panels.items() for name in names}
    for param in command.params:
        if param.name in panel_of:
            param.rich_help_panel = panel_of[param.name]
