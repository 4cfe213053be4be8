"""Name columns and slices by feature, for model functions that do not care for slots."""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from monolith.native_training.data.feature_list import FeatureList, get_feature_name_and_slot
from monolith.native_training.ops.layout_config import OutConfig, OutType, SliceConfig
from monolith.native_training.slots.combiners import Combiner, FirstN, ReduceMean, ReduceSum
from monolith.native_training.slots.slots import (
    DEFAULT_EXPIRE_TIME,
    FeatureColumn,
    FeatureSlice,
    FeatureSlot,
    FeatureSlotConfig,
)
from monolith.native_training.tasks.context import Context
from monolith.ops import Ragged
from monolith.ops.fids import switch_slot_v1, switch_slot_v2

Name = str | int | FeatureColumn
"""A feature, the number of its slot, or its column."""

_SWITCHES: Mapping[str, Callable[[torch.Tensor, int], torch.Tensor]] = MappingProxyType(
    {"example": switch_slot_v2, "example_batch": switch_slot_v2, "instance": switch_slot_v1}
)


class EmbeddingColumns:
    """Make the columns of one call of a model function.

    Args:
        ctx: makes the slots.
        feature_list: says which slot a feature has; else its name, and else it gets the first
            number from 1 that no slot has.
    """

    def __init__(self, ctx: Context, feature_list: FeatureList | None = None) -> None:
        self._ctx, self._feature_list = ctx, feature_list
        slots = () if feature_list is None else (feature.slot for feature in feature_list)
        self._numbers = {slot for slot in slots if slot is not None}
        self._free = (n for n in itertools.count(1) if n not in self._numbers)
        self._slots: dict[str, FeatureSlot] = {}
        self._columns: dict[str, FeatureColumn] = {}
        self._slices: dict[tuple[str, str], FeatureSlice] = {}

    def column(
        self,
        feature: Name,
        *,
        combiner: Combiner,
        occurrence_threshold: int | None = None,
        expire_time: int = DEFAULT_EXPIRE_TIME,
        shared_name: str | None = None,
    ) -> FeatureColumn:
        """Return the column of a feature, which the first call with the feature makes.

        Raises:
            Exception: the slot that it shares cannot be made.
        """
        if isinstance(feature, FeatureColumn):
            return feature
        name = self._number(feature)[0]
        if name not in self._columns:
            owner = feature if shared_name is None else shared_name
            try:
                slot = self._slot(owner, occurrence_threshold or 0, expire_time)
            except (NameError, ValueError) as error:
                if shared_name is None:
                    raise
                raise Exception(
                    f"{name} shared embedding with {shared_name}, so {shared_name} should create "
                    "first!"
                ) from error
            self._columns[name] = FeatureColumn(slot, name, combiner)
        return self._columns[name]

    def _number(self, feature: str | int) -> tuple[str, int | None]:
        return get_feature_name_and_slot(feature, self._feature_list)

    def _slot(self, feature: str | int, occurrence_threshold: int, expire_time: int) -> FeatureSlot:
        name, number = self._number(feature)
        if name in self._columns:
            return self._columns[name].feature_slot
        if name not in self._slots:
            if number is None:
                number = next(self._free)
            self._numbers.add(number)
            config = FeatureSlotConfig(
                name,
                slot_id=number,
                occurrence_threshold=occurrence_threshold,
                expire_time=expire_time,
            )
            self._slots[name] = self._ctx.create_feature_slot(config)
        return self._slots[name]

    def column_slice(
        self, feature: Name, slice_name: str, dim: int, options: Mapping[str, Any]
    ) -> tuple[FeatureColumn, FeatureSlice]:
        """Return the column of a feature and a slice; features of one slot have the same slice."""
        column = self.column(feature, combiner=ReduceSum())
        key = column.feature_slot.name, slice_name
        if key not in self._slices:
            self._slices[key] = column.feature_slot.add_feature_slice(dim, **options)
        return column, self._slices[key]


def layout_name(slice_name: str, columns: Sequence[FeatureColumn]) -> str:
    """Return `<slice_name>_<md5>`, of the sorted names of the features.

    Example:
        >>> from types import SimpleNamespace as Column
        >>> layout_name("vec", [Column(feature_name="b"), Column(feature_name="a")])
        'vec_b345e1dc09f20fdefdea469f09167892'
    """
    names = ",".join(sorted(column.feature_name for column in columns))
    return f"{slice_name}_{hashlib.md5(names.encode(), usedforsecurity=False).hexdigest()}"


def out_config(
    slices: Sequence[tuple[FeatureColumn, FeatureSlice]], out_type: str | None
) -> OutConfig:
    """Return the layout of slices.

    Raises:
        ValueError: an unknown type of output.
    """
    kinds = {
        None: OutType.NONE,
        "concat": OutType.CONCAT,
        "stack": OutType.STACK,
        "add_n": OutType.ADDN,
        "addn": OutType.ADDN,
    }
    if out_type not in kinds:
        joined([], out_type)
    configs = [SliceConfig(column.feature_name, s.start, s.end) for column, s in slices]
    return OutConfig(configs, kinds[out_type])


def combiner_of(combiner: Combiner | str | None, max_seq_length: int) -> Combiner:
    """Return a combiner by its name, or by the length of a sequence.

    Raises:
        ValueError: there is no such name.
    """
    if combiner is None:
        return FirstN(max_seq_length) if max_seq_length > 0 else ReduceSum()
    if isinstance(combiner, Combiner):
        return combiner
    if combiner == "first_n":
        return FirstN(max_seq_length)
    kinds: dict[str, Combiner] = {"reduce_sum": ReduceSum(), "reduce_mean": ReduceMean()}
    if combiner not in kinds:
        raise ValueError(
            f"[create_embedding_feature_column] expected combiner {', '.join(kinds)} or first_n, "
            f"got {combiner!r}"
        )
    return kinds[combiner]


def named_dims(features: Any, slice_dim: int | None) -> list[tuple[list[Name], int]]:
    """Return groups of features and the widths of their slices; most groups have one feature.

    Raises:
        ValueError: the features have none of the forms that `lookup_embedding_slice` takes.
    """
    if isinstance(features, Mapping):
        return [([name], dim) for name, dim in features.items()]
    if isinstance(features, Sequence) and not isinstance(features, str) and features:
        kinds = {type(feature) for feature in features}
        if slice_dim is not None and kinds <= {str, int, FeatureColumn}:
            return [([feature], slice_dim) for feature in features]
        if slice_dim is not None and kinds == {list}:
            return [(feature, slice_dim) for feature in features]
        if kinds == {tuple} and all(len(feature) == 2 for feature in features):
            return [([name], dim) for name, dim in features]
    raise ValueError("ValueError for features")


def joined(parts: Sequence[torch.Tensor], how: str | None) -> Any:
    """Return parts as a list, or as one tensor: "concat", "stack", "add_n" or "addn".

    Raises:
        ValueError: there is no such name.
    """
    if how is None:
        return list(parts)
    if how == "concat":
        return torch.cat(list(parts), 1)
    if how == "stack":
        return torch.stack(list(parts), 1)
    if how in ("add_n", "addn"):
        return torch.stack(list(parts)).sum(0)
    raise ValueError(f"[lookup_embedding_slice] expected concat, stack, add_n or None, got {how!r}")


def share_slot(
    features: Mapping[str, Any],
    share_meta: Mapping[str, tuple[bool, int]],
    variant_type: str = "example",
    suffix: str = "share",
) -> dict[str, Any]:
    """Return the columns of a batch, with fids of some features in another slot too, or instead.

    Args:
        features: columns by name.
        share_meta: feature -> whether it is changed in place, and the slot.
        variant_type: "example" and "example_batch" have fids v2, "instance" fids v1.
        suffix: of the name of a copy, `<name>_<suffix>`.

    Raises:
        ValueError: another variant.

    Example:
        >>> from monolith.ops.fids import decode_fid_v2, encode_fid_v2
        >>> ids = Ragged.from_lists([[encode_fid_v2(1, torch.tensor(7)).item()]])
        >>> shared = share_slot({"user": ids}, {"user": (False, 3)})
        >>> [part.item() for part in decode_fid_v2(shared["user_share"].values)]
        [3, 7]
    """
    if variant_type not in _SWITCHES:
        raise ValueError(
            f"[share_slot] expected variant_type {', '.join(_SWITCHES)}, got {variant_type!r}"
        )
    shared = dict(features)
    for name, (in_place, slot) in share_meta.items():
        ids = features[name]
        values = _SWITCHES[variant_type](ids.values, slot)
        shared[name if in_place else f"{name}_{suffix}"] = Ragged(values, ids.row_splits)
    return shared
