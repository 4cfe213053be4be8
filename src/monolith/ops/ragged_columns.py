"""Ids of many features in two tensors."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from monolith.errors import InvalidArgumentError
from monolith.ops.ragged import Ragged, name_of

_WHERE = "[RaggedColumns]"


def refuse_left_out(name: object, left_out: frozenset[str]) -> None:
    """Refuse to read or to look for a column that a source has and did not read.

    Raises:
        InvalidArgumentError: the name is one of those that were left out.
    """
    if name in left_out:
        raise InvalidArgumentError(
            f"[Batch] expected a column that is read, got {name!r}, which was left out because "
            "nothing names it; add it to `columns` of the task, or to the names of Pipeline.select"
        )


class ColumnNames:
    """Names of columns and their numbers. All batches of a source, and plans over them, share it.

    Args:
        places: number of the column of each name.
        left_out: names of columns that the source has and did not read.

    Attributes:
        places: the dictionary of the constructor; do not change it.
        left_out: the names of the constructor.

    Example:
        >>> names = ColumnNames({"user": 0, "item": 1})
        >>> names.without({"user"}).places
        {'item': 1}
    """

    __slots__ = ("_without", "left_out", "places")

    def __init__(self, places: dict[str, int], left_out: frozenset[str] = frozenset()) -> None:
        self.places, self.left_out = places, left_out
        self._without: tuple[Collection[str], ColumnNames] | None = None

    def without(self, names: Collection[str]) -> "ColumnNames":
        """Return the remaining columns with their numbers; equal names return the same object."""
        remembered = self._without
        if remembered is None or remembered[0] != names:
            others = {name: at for name, at in self.places.items() if name not in names}
            remembered = self._without = (names, ColumnNames(others, self.left_out))
        return remembered[1]


class RaggedColumns(Mapping[str, Ragged]):
    """Ids of many features in two tensors, as a pipeline delivers them in a batch.

        user          [[7], [9]]
        history       [[3, 1], []]

        ids           7 9 | 3 1      # (num_ids,), feature after feature
        row_splits    0 1 2          # (num_features, num_rows + 1)
                      0 2 2

    The `Ragged` of a feature shares this memory; it is created on first use and cached. Tables take
    both tensors directly, at a cost that does not grow with the number of features. Both tensors
    are shared, not copied: do not change `row_splits` in place. Reads are thread-safe. A pytree of
    its two tensors; two objects are equal only if they are the same object.

    Args:
        names: names of the features, in order.
        ids: ids of all features, int64; (num_ids,).
        row_splits: row splits of each feature, int64, on the device of `ids`. The splits of a
            feature begin with 0, never decrease and end with its number of ids; (num_features,
            num_rows + 1).

    Raises:
        TypeError: an argument is no tensor, or its dtype is not int64.
        ValueError: a name occurs twice, or shapes, devices or contents do not fit.

    Example:
        >>> splits = torch.tensor([[0, 1, 2], [0, 2, 2]])
        >>> ids = RaggedColumns(["user", "history"], torch.tensor([7, 9, 3, 1]), splits)
        >>> ids["history"].to_lists(), ids.num_rows
        ([[3, 1], []], 2)
    """

    __slots__ = ("_made", "_starts", "ids", "names", "row_splits")
    __hash__ = object.__hash__

    names: ColumnNames
    ids: torch.Tensor
    row_splits: torch.Tensor

    def __init__(self, names: Iterable[str], ids: torch.Tensor, row_splits: torch.Tensor) -> None:
        features = list(names)
        places = {name: number for number, name in enumerate(features)}
        if len(places) != len(features):
            raise ValueError(f"{_WHERE} expected different names, got {', '.join(features)}")
        _check(len(features), ids, row_splits)
        self._set(ColumnNames(places), ids, row_splits)

    @classmethod
    def from_ragged(cls, ragged: Mapping[str, Ragged]) -> "RaggedColumns":
        """Copy the int64 ids of features into one object.

        Example:
            >>> ids = {"user": Ragged.from_lists([[7]]), "seen": Ragged.from_lists([[3, 1]])}
            >>> RaggedColumns.from_ragged(ids).ids
            tensor([7, 3, 1])
        """
        if not ragged:
            raise ValueError(f"{_WHERE} expected at least one feature, got none")
        for name, rows in ragged.items():
            num_rows = next(iter(ragged.values())).num_rows
            if rows.num_rows != num_rows:
                raise ValueError(
                    f"{_WHERE} expected {num_rows} rows of every feature, got {rows.num_rows} "
                    f"(feature {name!r})"
                )
        ids = torch.cat([rows.values for rows in ragged.values()])
        return cls(ragged, ids, torch.stack([rows.row_splits for rows in ragged.values()]))

    def _set(self, names: ColumnNames, ids: Any, row_splits: Any) -> None:
        self.names, self.ids, self.row_splits = names, ids, row_splits
        self._starts: list[int] | None = None
        self._made: dict[str, Ragged] = {}

    @classmethod
    def _unchecked(cls, names: ColumnNames, ids: Any, row_splits: Any) -> "RaggedColumns":
        """Return an object without checks, for valid tensors and for leaves of a mapped pytree."""
        columns = object.__new__(cls)
        columns._set(names, ids, row_splits)
        return columns

    def __getitem__(self, name: str) -> Ragged:
        ragged = self._made.get(name)
        if ragged is None:
            refuse_left_out(name, self.names.left_out)
            column, starts = self.names.places[name], self._begins()
            ids = self.ids[starts[column] : starts[column + 1]]
            ragged = self._made[name] = Ragged._unchecked(ids, self.row_splits[column])
        return ragged

    def _begins(self) -> list[int]:
        """Return the position of the first id of each column, and the number of all ids."""
        if self._starts is None:
            self._starts = [0, *self.row_splits[:, -1].cumsum(0).tolist()]
        return self._starts

    def __contains__(self, name: object) -> bool:
        refuse_left_out(name, self.names.left_out)
        return name in self.names.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.names.places)

    def __len__(self) -> int:
        return len(self.names.places)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"RaggedColumns({', '.join(self)}; {self.num_rows} rows)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.names.places, self.names.left_out, self.ids, self.row_splits)

    @property
    def num_rows(self) -> int:
        """Number of rows, equal for all features."""
        return self.row_splits.shape[1] - 1

    def without(self, names: Collection[str]) -> "RaggedColumns":
        """Return the remaining features, on the same memory."""
        columns = self._unchecked(self.names.without(names), self.ids, self.row_splits)
        columns._starts = self._starts
        return columns

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "RaggedColumns":
        """Return the rows on another device, or this object if it is there."""
        ids = self.ids.to(device, non_blocking=non_blocking)
        row_splits = self.row_splits.to(device, non_blocking=non_blocking)
        if ids is self.ids and row_splits is self.row_splits:
            return self
        return self._copy_with(ids, row_splits)

    def pin_memory(self) -> "RaggedColumns":
        """Return a copy in page-locked memory; `DataLoader(pin_memory=True)` calls this method."""
        return self._copy_with(self.ids.pin_memory(), self.row_splits.pin_memory())

    def _copy_with(self, ids: torch.Tensor, row_splits: torch.Tensor) -> "RaggedColumns":
        copy = self._unchecked(self.names, ids, row_splits)
        copy._starts = self._begins()  # computed here, because on a device it would wait
        return copy


def _check(num_names: int, ids: torch.Tensor, row_splits: torch.Tensor) -> None:
    for name, tensor, dims in (("ids", ids, 1), ("row_splits", row_splits, 2)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{_WHERE} expected {name} as a torch.Tensor, got {type(tensor).__name__}"
            )
        if tensor.dtype != torch.int64:
            raise TypeError(f"{_WHERE} expected {name} of int64, got {name_of(tensor.dtype)}")
        if tensor.dim() != dims:
            raise ValueError(
                f"{_WHERE} expected {name} with {dims} dimensions, got shape {tuple(tensor.shape)}"
            )
    if row_splits.device != ids.device:
        raise ValueError(
            f"{_WHERE} expected row_splits on device {ids.device}, that of ids, got "
            f"{row_splits.device}"
        )
    if row_splits.shape[0] != num_names or row_splits.shape[1] == 0:
        raise ValueError(
            f"{_WHERE} expected row_splits of shape ({num_names}, num_rows + 1), got "
            f"{tuple(row_splits.shape)}"
        )
    is_right = (row_splits[:, 0] == 0).all() & (row_splits.diff() >= 0).all()
    if not bool(is_right):
        raise ValueError(f"{_WHERE} expected rows of row_splits that ascend from 0, got others")
    num_ids = int(row_splits[:, -1].sum())
    if num_ids != ids.shape[0]:
        raise ValueError(f"{_WHERE} expected row_splits of all {ids.shape[0]} ids, got {num_ids}")


def _rebuilt(places: dict[str, int], left_out: Any, ids: Any, row_splits: Any) -> RaggedColumns:
    names = ColumnNames(places, frozenset(left_out))
    return RaggedColumns._unchecked(names, ids, row_splits)


def _names_of(columns: RaggedColumns) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
    """Return names as tuples, which a serialized pytree can have."""
    names = columns.names
    return tuple(names.places.items()), tuple(sorted(names.left_out))


pytree.register_pytree_node(
    RaggedColumns,
    lambda columns: ([columns.ids, columns.row_splits], _names_of(columns)),
    lambda leaves, names: _rebuilt(dict(names[0]), names[1], *leaves),
    serialized_type_name="monolith.ops.RaggedColumns",
)
