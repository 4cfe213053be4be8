"""Write the files that describe a run for debugging: its settings and tables, and its modules."""

import dataclasses
import json
import math
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

from monolith.checkpoint.storage import make_folder, write_file
from monolith.table.disk.config_json import config_to_json
from monolith.util.names import debugging_info_path, module_tree_path

if TYPE_CHECKING:
    from monolith.train.trainer import Trainer

_PACKAGES = ("monolith-torch", "torch", "numpy", "pyarrow")


def write_debugging_files(directory: str, trainer: "Trainer") -> None:
    """Write `debugging_info.pb` and `meta_graph_for_debugging.pb`, both JSON, for a trainer.

    Each file is replaced in one step, so that a reader sees the old or the new text.

    Raises:
        OpError: A file cannot be written.
    """
    make_folder(directory)
    task = trainer.task
    info = {
        "task": task.name,
        "step": trainer.state.step,
        "settings": {"task": _plain(task.settings), "train": _plain(trainer.settings)},
        "versions": _versions(),
        "features": {
            name: {"table": feature.table, "dim": feature.dim, "combiner": feature.combiner}
            for name, feature in trainer.features.features.items()
        },
        "tables": {
            name: config_to_json(table.config) for name, table in trainer.features.tables.items()
        },
        "dense": list(task.dense),
        "labels": trainer.trainee.columns.labels,
        "num_servers": 0 if trainer.servers is None else len(trainer.servers),
    }
    _write(debugging_info_path(directory), info)
    modules = {"features": trainer.features, "model": trainer.model}
    write_module_tree(directory, {name: module_tree(module) for name, module in modules.items()})


def write_module_tree(directory: str, tree: Mapping[str, Any]) -> None:
    """Write `meta_graph_for_debugging.pb`, a description of modules or tensors as JSON.

    Raises:
        OpError: The file cannot be written; an older one stays.
    """
    _write(module_tree_path(directory), tree)


def module_tree(module: torch.nn.Module) -> dict[str, Any]:
    """Return the class, parameters, buffers and submodules of a module, recursively, for JSON.

    Example:
        >>> tree = module_tree(torch.nn.Sequential(torch.nn.Linear(2, 1)))
        >>> tree["class"], tree["modules"]["0"]["parameters"]["bias"]
        ('torch.nn.modules.container.Sequential', {'dtype': 'torch.float32', 'shape': [1]})
    """
    kind = type(module)
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "parameters": _facts(module.named_parameters(recurse=False)),
        "buffers": _facts(module.named_buffers(recurse=False)),
        "modules": {name: module_tree(child) for name, child in module.named_children()},
    }


def _facts(tensors: Any) -> dict[str, dict[str, Any]]:
    return {name: {"dtype": str(t.dtype), "shape": list(t.shape)} for name, t in tensors}


def _plain(value: Any) -> Any:
    """Return settings of a user as `json.dumps` accepts them, other objects as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if value is None or isinstance(value, str) or is_number else str(value)


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _write(path: str, value: Mapping[str, Any]) -> None:
    write_file(path, json.dumps(value, indent=1, sort_keys=True).encode())
