"""Restores that do not take every value: a fresh dense network, and renamed parameters."""

import logging
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from monolith.checkpoint.load import Checkpoint
from monolith.checkpoint.storage import exists, write_file
from monolith.errors import InvalidArgumentError, NotFoundError

_log = logging.getLogger(__name__)

CUSTOM_RESTORE_OP = "custom_restore_op"
"""Collection of a run with at most one `CustomRestore`."""
CLEAR_NN = "clear_nn"
"""File of a model directory: its dense network was cleared."""

_PART = re.compile(r"/part_(\d+)$")


@dataclass(frozen=True)
class CustomRestore:
    """What a run does in place of a restore, once.

    Args:
        init_ops: with an alias map one action, which gets the values by new name. Without one, an
            action that initialises the dense network, and perhaps one that gets the global step.
        placeholders: with an alias map, the tensors that get values, by new name.
        alias_map: new name -> name in the checkpoint; names that are not in it stay.

    Raises:
        ValueError: there is no action, or an alias map comes with two.
    """

    init_ops: Sequence[Callable[..., Any]]
    placeholders: Mapping[str, torch.Tensor] = field(default_factory=dict)
    alias_map: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        limit = 2 if self.alias_map is None else 1
        if not 1 <= len(self.init_ops) <= limit:
            raise ValueError(
                f"[CustomRestore] expected 1 to {limit} init_ops, got {len(self.init_ops)}"
            )


def restore_custom(custom: CustomRestore, checkpoint: Checkpoint, model_dir: str) -> bool:
    """Whether it was done; if not, every value is to be restored."""
    if custom.alias_map is not None:
        feed = calc_feed_dict(checkpoint, custom.alias_map, custom.placeholders)
        if feed is None:
            return False
        custom.init_ops[0](feed)
        return True
    flag = posixpath.join(model_dir, CLEAR_NN)
    if exists(flag):
        return False
    custom.init_ops[0]()
    if len(custom.init_ops) > 1:
        custom.init_ops[1](checkpoint.step)
    write_file(flag, b"clean nn done!")
    _log.info("the dense network begins anew; %s is there from now on", flag)
    return True


def calc_feed_dict(
    reader: Checkpoint, alias_map: Mapping[str, str], placeholders: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor] | None:
    """Values of a checkpoint by new name.

    Several new names `<name>/part_<k>` that map to one old name get their parts of it, cut along
    the first dimension in the order of k.

    Returns:
        None where all new names are in the checkpoint, or no old one is.

    Raises:
        NotFoundError: some old names are in the checkpoint, but not this one.
        InvalidArgumentError: parts do not add up to the old tensor.
    """
    known = reader.tensors
    if all(_PART.sub("", name) in known for name in placeholders):
        return None
    parts: dict[str, list[str]] = {}
    for name in placeholders:
        parts.setdefault(alias_map.get(name, name), []).append(name)
    missing = sorted(set(parts) - set(known))
    if len(missing) == len(parts):
        return None
    if missing:
        raise NotFoundError(
            f"[calc_feed_dict] expected {missing[0]!r} in {reader.prefix}, got none of that name; "
            "name another one in the alias map"
        )
    values = reader.read_dense(parts)
    feed: dict[str, torch.Tensor] = {}
    for old, names in parts.items():
        feed |= _cut(old, values[old], sorted(names, key=_part_number), placeholders)
    return feed


def _part_number(name: str) -> tuple[int, str]:
    found = _PART.search(name)
    return (int(found[1]) if found else 0, name)


def _cut(
    old: str, value: torch.Tensor, names: list[str], targets: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    if len(names) == 1:
        return {names[0]: value}
    sizes = [len(targets[name]) for name in names]
    if value.dim() == 0 or sum(sizes) != len(value):
        raise InvalidArgumentError(
            f"[calc_feed_dict] expected parts of {old!r} with {list(value.shape)[:1]} rows in all, "
            f"got {sizes} of {names}"
        )
    return dict(zip(names, torch.split(value, sizes), strict=True))
