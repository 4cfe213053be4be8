"""Panels of a help page that is long: options of one purpose lie together."""

from types import MappingProxyType
from typing import Any

_MANY = 16  # options of a command whose page has panels
PANELS = MappingProxyType(
    {
        "Servers": ("servers", "num_servers", "keys", "transfer", "server_timeout"),
        "Checkpoints": (
            *("checkpoints", "save_every", "save_seconds", "full_every", "save_rate"),
            *("resume", "fallback"),
        ),
        "Metrics and profiles": (
            *("tensorboard", "metrics_port", "metrics_host", "metrics_file"),
            *("profile", "profile_dir"),
        ),
    }
)
"""Title of each panel -> names of the parameters that it shows."""


def set_panels(command: Any) -> None:
    """Show the options of a command that has many in panels; the others stay under "Options".

    Args:
        command: Command of Typer.
    """
    panel_of = {name: panel for panel, names in PANELS.items() for name in names}
    options = [param for param in command.params if param.param_type_name == "option"]
    for option in options if len(options) > _MANY else ():
        option.rich_help_panel = panel_of.get(option.name)
