"""Groups of what a saver saves, by the device that owns it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from monolith.checkpoint.cut import Contents
from monolith.checkpoint.dense_tensors import describe, join_tensors
from monolith.checkpoint.load import Checkpoint, copy_tensors, matched
from monolith.checkpoint.state_tree import STATES, Stateful, flatten_states
from monolith.native_training.saver.saveables import Item

_RESTORE = "[PartialRecoverySaver.restore]"


class SaverBuilder:
    """Knows what to gather from which device, and what to give back to it.

    Args:
        items: what is saved, by name.
        sharded: whether each device gets files of its own.
        reshape: whether a tensor takes a value of another shape and the same size.
    """

    def __init__(
        self, items: Sequence[Item], *, sharded: bool = False, reshape: bool = False
    ) -> None:
        self._items = list(items)
        self._sharded, self._reshape = sharded, reshape

    @property
    def items_per_device(self) -> dict[str, list[Item]]:
        """Items by the label of their device, sorted."""
        groups: dict[str, list[Item]] = {}
        for item in self._items:
            groups.setdefault(item.device, []).append(item)
        return dict(sorted(groups.items()))

    def description(self) -> dict[str, Any]:
        """Names, dtypes and shapes by device, as JSON."""
        return describe((item.device, item.name, item.value) for item in self._items)

    def gather(self) -> Contents:
        """Return what is there now. Each device gives its own items only.

        Raises:
            ValueError: a tensor in the state of an object has the name of another one.
        """
        groups: list[dict[str, torch.Tensor]] = []
        trees: dict[str, Any] = {}
        for items in self.items_per_device.values():
            states, tensors = flatten_states(_objects(items))
            trees |= states
            groups.append(join_tensors("[PartialRecoverySaver]", _tensors(items), tensors))
        if not self._sharded:
            groups = [join_tensors("[PartialRecoverySaver]", *groups)]
        groups = [group for group in groups if group]
        return Contents(dense=groups, trainer={STATES: trees} if trees else {})

    def restore_ops_per_device(
        self,
        checkpoint: Checkpoint,
        is_wanted: Callable[[str], bool] = lambda device: True,
        *,
        num_threads: int | None = None,
    ) -> dict[str, Callable[[], None]]:
        """Return, by device, a function that restores its items; all values are checked.

        Args:
            checkpoint: where the values come from.
            is_wanted: whether a device is restored.
            num_threads: threads to read with, torch.get_num_threads() if None.

        Raises:
            NotFoundError: an item is not in the checkpoint.
            InvalidArgumentError: a shape or dtype differs.
        """
        groups = {
            device: items for device, items in self.items_per_device.items() if is_wanted(device)
        }
        return self._AddShardedRestoreOps(checkpoint, groups, num_threads)

    def _AddShardedRestoreOps(  # noqa: N802 - a name of the reference
        self, checkpoint: Checkpoint, groups: Mapping[str, list[Item]], num_threads: int | None
    ) -> dict[str, Callable[[], None]]:
        """Read the values of all groups, and return the function that restores each group."""
        items = [item for group in groups.values() for item in group]
        values, states = checkpoint.read_parts(
            _RESTORE, _tensors(items), _objects(items), num_threads
        )
        return {
            device: self._action(checkpoint.prefix, items, values, states)
            for device, items in groups.items()
        }

    def _action(
        self,
        prefix: str,
        items: list[Item],
        values: Mapping[str, torch.Tensor],
        states: Mapping[str, Any],
    ) -> Callable[[], None]:
        pairs = matched(_RESTORE, prefix, _tensors(items), values, reshape=self._reshape)

        def restore() -> None:
            copy_tensors(pairs)
            for name, target in _objects(items).items():
                target.load_state_dict(states[name])

        return restore


def _tensors(items: Iterable[Item]) -> dict[str, torch.Tensor]:
    return {item.name: item.value for item in items if isinstance(item.value, torch.Tensor)}


def _objects(items: Iterable[Item]) -> dict[str, Stateful]:
    return {item.name: item.value for item in items if not isinstance(item.value, torch.Tensor)}
