"""Where the ids of features are in a batch, as the core takes them: addresses and sizes."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from monolith.ops import Ragged, RaggedColumns
from monolith.ops.ragged_columns import ColumnNames

__all__ = ["GivenIds", "IdPlaces"]

_ID_TYPES = frozenset((torch.int64, torch.int32))
_MOST_COLUMNS = 2  # for each feature: of more, it is cheaper to take those that are used
_dtype_of, _is_cpu = operator.attrgetter("dtype"), operator.attrgetter("is_cpu")
_dim_of, _size_of = torch.Tensor.dim, torch.Tensor.numel
_is_contiguous, _address_of = torch.Tensor.is_contiguous, torch.Tensor.data_ptr


class GivenIds(NamedTuple):
    """The ids of a batch, borrowed.

    Attributes:
        addresses: what the core takes, addresses and sizes.
        num_ids: of all features, or more.
        batch: number of samples.
        held: what lies at the addresses.
    """

    addresses: tuple[Any, ...]
    num_ids: int
    batch: int
    held: Sequence[torch.Tensor]


class _Plan(NamedTuple):
    """Which columns of a batch the features are.

    Attributes:
        names: of the batch that it was made for.
        num_columns: of the batch, others included.
        columns: int32 (features,); None: no plan is made.
    """

    names: ColumnNames | None
    num_columns: int
    columns: torch.Tensor | None

    @classmethod
    def make(cls, features: Sequence[str], ids: RaggedColumns) -> "_Plan":
        """For features of a batch, unless one is missing or most columns are others."""
        places, num_columns = ids.names.places, len(ids.row_splits)
        if num_columns > _MOST_COLUMNS * len(features) or not places.keys() >= set(features):
            return cls(ids.names, num_columns, None)
        found = [places[name] for name in features]
        return cls(ids.names, num_columns, torch.tensor(found, dtype=torch.int32, device="cpu"))


class IdPlaces:
    """Finds the ids of some features in batches.

    Args:
        names: of the features, in the order of the core.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._last_plan = _Plan(None, 0, None)
        # In one call. The first one twice, for a single name would give no tuple.
        pick: Any = operator.itemgetter(*names[:1], *names) if names else tuple
        self._pick: Callable[[Mapping[str, Ragged]], tuple[Ragged, ...]] = pick

    def find(self, ids: Mapping[str, Ragged]) -> GivenIds | None:
        """None if something is wrong with them."""
        if isinstance(ids, RaggedColumns) and _is_plain(ids):
            plan = self._plan_of(ids)
            if plan.columns is not None:
                return _joined(ids, plan.num_columns, plan.columns)
        try:
            return _one_by_one(self._pick(ids)[1:])
        except (AttributeError, KeyError, RuntimeError, TypeError):
            return None

    def _plan_of(self, ids: RaggedColumns) -> _Plan:
        """Where the features are; no columns: they are taken one by one. Of a source once."""
        plan = self._last_plan
        if plan.names is not ids.names or plan.num_columns != len(ids.row_splits):
            plan = self._last_plan = _Plan.make(self._names, ids)
        return plan


def _is_plain(ids: RaggedColumns) -> bool:
    """Whether the core can take both tensors: mapped as a tree, they may be anything."""
    return ids.ids.is_cpu and ids.ids.dtype == ids.row_splits.dtype == torch.int64


def _joined(ids: RaggedColumns, num_columns: int, columns: torch.Tensor) -> GivenIds:
    """Of features whose ids lie together."""
    keys, splits = ids.ids.contiguous(), ids.row_splits
    splits = (splits[0] if splits.stride(0) == 0 else splits).contiguous()
    batch = splits.shape[-1] - 1
    stride = 0 if splits.dim() == 1 else batch + 1
    places = (keys.data_ptr(), keys.numel(), splits.data_ptr(), stride)
    addresses = (*places, num_columns, columns.data_ptr(), batch)
    return GivenIds(addresses, keys.numel(), batch, [keys, splits, columns])


def _one_by_one(features: Sequence[Ragged]) -> GivenIds | None:
    """With a thousand features every attribute counts: each is asked of all in one go."""
    ids = [ragged.values for ragged in features]
    splits = [ragged.row_splits for ragged in features]
    first, dtypes = splits[0], set(map(_dtype_of, ids))
    if all(each is first for each in splits):
        splits = [first]
    held = [*ids, *splits]
    is_good = (
        dtypes <= _ID_TYPES
        and set(map(_dtype_of, splits)) == {torch.int64}
        and all(map(_is_cpu, held))
        and set(map(_dim_of, held)) == {1}
        and len(set(map(_size_of, splits))) == 1
    )
    if not is_good:
        return None
    if not all(map(_is_contiguous, held)):
        held = [each.contiguous() for each in held]
        ids, splits = held[: len(ids)], held[len(ids) :]
    sizes, batch = list(map(_size_of, ids)), first.numel() - 1
    are_narrow = [each.dtype == torch.int32 for each in ids] if torch.int32 in dtypes else []
    places = (list(map(_address_of, ids)), sizes, list(map(_address_of, splits)))
    return GivenIds((*places, are_narrow, batch), sum(sizes), batch, held)
