"""Columns of a source that hold ids, dense values, labels, weights and times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import pyarrow as pa

INVALID_LABEL = float(np.finfo(np.float32).min)  # label of a sample without a label; -3.4028235e+38

_SLOTS = 1 << 15
_SHOWN = 20  # names of columns in a message


@dataclass(frozen=True, slots=True)
class IdColumn:
    """Names a feature of numbers, strings, or lists of either; a missing value is an empty list.

    Integers are used as keys without a change, negative integers too. The key of a string is the
    XXH64 of its UTF-8 bytes (`hash_strings`).

    Args:
        name: name of the feature.
        column: column of the source; None means the column named `name`.
        max_length: number of ids of a sample that are kept, the first ones.
        slot: if set, keys become fids v2 of this slot (0 to 32767) with the low 48 bits of the id.
    """

    name: str
    column: str | None = None
    max_length: int | None = None
    slot: int | None = None

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 1:
            raise ValueError(
                f"[IdColumn] expected max_length of at least 1, got {self.max_length} "
                f"(feature {self.name!r})"
            )
        if self.slot is not None and not 0 <= self.slot < _SLOTS:
            raise ValueError(
                f"[IdColumn] expected a slot from 0 to {_SLOTS - 1}, got {self.slot} "
                f"(feature {self.name!r})"
            )


@dataclass(frozen=True, slots=True)
class DenseColumn:
    """Names a column with one number, or `width` numbers, for each sample.

    Args:
        name: name in the batch.
        column: column of the source; None means the column named `name`.
        width: length of each list of a column of lists.
        fill: number that replaces a missing number; None makes a missing number an error.
    """

    name: str
    column: str | None = None
    width: int | None = None
    fill: float | None = None

    def __post_init__(self) -> None:
        if self.width is not None and self.width < 1:
            raise ValueError(
                f"[DenseColumn] expected a width of at least 1, got {self.width} "
                f"(column {self.name!r})"
            )


@dataclass(frozen=True, slots=True)
class Label(DenseColumn):
    """Names a dense column that is a label.

    Args:
        name: name in the batch.
        column: column of the source, as in `DenseColumn`.
        width: length of each list of a column of lists.
        fill: label that replaces a missing label, as in `DenseColumn`.
        low: least valid label; a smaller label is an error.
        high: greatest valid label; a larger label is an error.
    """

    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """Lists the columns that a source delivers to a batch.

    A name instead of a column means `IdColumn(name)`, `DenseColumn(name)` or `Label(name)`.

    Args:
        ids: columns of features.
        dense: columns of dense values.
        labels: columns of labels.
        weight: name of the column of sample weights.
        time: name of the column of request times, in seconds since 1970.

    Raises:
        ValueError: two columns have the same name.

    Example:
        >>> Columns(["user", "item"], ["price"], ["click"]).names()
        ['user', 'item', 'price', 'click']
    """

    ids: Sequence[IdColumn | str] = ()
    dense: Sequence[DenseColumn | str] = ()
    labels: Sequence[Label | str] = ()
    weight: str | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        wrap = object.__setattr__
        wrap(self, "ids", tuple(IdColumn(x) if isinstance(x, str) else x for x in self.ids))
        wrap(self, "dense", tuple(DenseColumn(x) if isinstance(x, str) else x for x in self.dense))
        wrap(self, "labels", tuple(Label(x) if isinstance(x, str) else x for x in self.labels))
        names = self.names()
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"[Columns] expected different names, got {name!r} twice")

    @property
    def id_columns(self) -> tuple[IdColumn, ...]:
        """Columns of `ids`, with every name replaced by its `IdColumn`."""
        return tuple(column for column in self.ids if isinstance(column, IdColumn))

    @property
    def dense_columns(self) -> tuple[DenseColumn, ...]:
        """Columns of `dense`, with every name replaced by its `DenseColumn`."""
        return tuple(column for column in self.dense if isinstance(column, DenseColumn))

    @property
    def label_columns(self) -> tuple[Label, ...]:
        """Columns of `labels`, with every name replaced by its `Label`."""
        return tuple(column for column in self.labels if isinstance(column, Label))

    def names(self) -> list[str]:
        """Return the names in the batch: ids, dense columns, labels, weight, time."""
        return [name for name, _ in self.sources()]

    def sources(self) -> list[tuple[str, str]]:
        """Return pairs of the name in the batch and the column of the source."""
        floats = (*self.dense_columns, *self.label_columns)
        pairs = [(column.name, column.column or column.name) for column in self.id_columns]
        pairs += [(column.name, column.column or column.name) for column in floats]
        return pairs + [(name, name) for name in (self.weight, self.time) if name is not None]

    def check(self, where: str, schema: pa.Schema) -> None:
        """Refuse a source that lacks a column.

        Raises:
            ValueError: a column is missing; the message names the nearest column.
        """
        for _, column in self.sources():
            if schema.get_field_index(column) >= 0:
                continue
            raise ValueError(
                f"{where} expected a column {column!r}, got {first_names(schema.names)}"
                f"{_hint(column, schema.names)}"
            )

    def plus(self, adds: "Columns | None") -> "Columns":
        """Return these columns and those columns of `adds` whose names are new.

        Raises:
            ValueError: both have a weight, or a time, and they are different columns.
        """
        if adds is None:
            return self
        for kind in ("weight", "time"):
            old, new = getattr(self, kind), getattr(adds, kind)
            if None not in (old, new) and old != new:
                raise ValueError(
                    f"[Columns.plus] expected the {kind} in column {old!r}, as before, got {new!r}"
                )
        known = self.names()
        return Columns(
            [*self.ids, *(column for column in adds.id_columns if column.name not in known)],
            [*self.dense, *(column for column in adds.dense_columns if column.name not in known)],
            [*self.labels, *(column for column in adds.label_columns if column.name not in known)],
            self.weight or adds.weight,
            self.time or adds.time,
        )

    def without(self, names: Sequence[str]) -> "Columns":
        """Return these columns except for the named ones.

        Raises:
            ValueError: a name is not among the columns.
        """
        self._check_names("without", names)
        return self._pick(lambda name: name not in names)

    def only(self, names: Sequence[str]) -> "Columns":
        """Return the named ones of these columns, in the order of these columns.

        Raises:
            ValueError: a name is not among the columns.
        """
        self._check_names("only", names)
        return self._pick(lambda name: name in names)

    def _check_names(self, method: str, names: Sequence[str]) -> None:
        known = self.names()
        for name in names:
            if name not in known:
                raise ValueError(
                    f"[Columns.{method}] expected columns of {first_names(known)}, got {name!r}"
                    f"{_hint(name, known)}"
                )

    def _pick(self, keeps: Callable[[str], bool]) -> "Columns":
        return Columns(
            [column for column in self.id_columns if keeps(column.name)],
            [column for column in self.dense_columns if keeps(column.name)],
            [column for column in self.label_columns if keeps(column.name)],
            self.weight if self.weight is not None and keeps(self.weight) else None,
            self.time if self.time is not None and keeps(self.time) else None,
        )

    @classmethod
    def infer(
        cls,
        schema: pa.Schema,
        *,
        label: str | Sequence[str] | None = None,
        weight: str | None = None,
        time: str | None = None,
    ) -> "Columns":
        """Choose columns by their Arrow types: integers and strings are ids, floats are dense.

        Lists are treated as their values; booleans are dense. Without the argument `label`, a
        column named `label` is the label; a column named `instance_weight` is the weight.

        Raises:
            ValueError: a named column is missing.
            TypeError: a column has an unsupported type, or no value that shows its type.

        Example:
            >>> import pyarrow as pa
            >>> schema = pa.schema({"user": pa.int64(), "price": pa.float32(), "label": pa.int8()})
            >>> Columns.infer(schema).names()
            ['user', 'price', 'label']
        """
        if not schema.names:
            raise ValueError("[Columns.infer] expected at least one column, got none")
        if label is None:
            label = [name for name in ("label",) if name in schema.names]
        if weight is None and "instance_weight" in schema.names:
            weight = "instance_weight"
        labels = [label] if isinstance(label, str) else list(label)
        special = {*labels, weight, time}
        ids: list[str] = []
        dense: list[str] = []
        for field in schema:
            if field.name in special:
                continue
            kind = _kind_of(field)
            (ids if kind == "ids" else dense).append(field.name)
        columns = cls(
            ids,
            [_dense(schema.field(name)) for name in dense],
            [_label(schema, name) for name in labels],
            weight,
            time,
        )
        columns.check("[Columns.infer]", schema)
        return columns


def first_names(names: Sequence[str]) -> str:
    """Return a list of names for messages: the first ones, and the number of the others.

    Example:
        >>> first_names(["user", "item"])
        "['user', 'item']"
    """
    if len(names) <= _SHOWN + 1:
        return str(list(names))
    return f"{list(names[:_SHOWN])} and {len(names) - _SHOWN} more"


def _hint(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _kind_of(field: pa.Field) -> str:
    kind = field.type
    if is_list(kind):
        kind = kind.value_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) or _is_text(kind):
        return "ids"
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return "dense"
    raise TypeError(
        f"[Columns.infer] expected column {field.name!r} of numbers, strings or lists of them, got "
        f"type {field.type}; name the columns to take with columns="
    )


def _dense(field: pa.Field) -> DenseColumn:
    if pa.types.is_fixed_size_list(field.type):
        return DenseColumn(field.name, width=field.type.list_size)
    if is_list(field.type):
        raise TypeError(
            f"[Columns.infer] expected the width of column {field.name!r} of type {field.type}; "
            "give columns= with a DenseColumn(name, width=...)"
        )
    return DenseColumn(field.name)


def _label(schema: pa.Schema, name: str) -> Label:
    at = schema.get_field_index(name)
    if at >= 0 and pa.types.is_fixed_size_list(schema.field(at).type):
        return Label(name, width=schema.field(at).type.list_size)
    return Label(name)


def is_untyped(kind: pa.DataType) -> bool:
    """Whether the type of the values is unknown: all are missing, or all lists are empty."""
    return bool(pa.types.is_null(kind.value_type if is_list(kind) else kind))


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list type, of variable or fixed length."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )
