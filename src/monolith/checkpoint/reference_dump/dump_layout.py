"""Which optimizer state a record of a dump has, and which columns of a table it becomes."""

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from monolith.errors import InvalidArgumentError
from monolith.table.config import Segment, TableConfig, segment_name, segments_of
from monolith.table.optimizers import (
    FTRL,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AMSGrad,
    BatchSoftmax,
    DynamicWdAdagrad,
    GroupAdagrad,
    GroupFTRL,
    Momentum,
    MovingAverage,
    Optimizer,
    RMSprop,
    RMSpropV2,
    StateColumn,
)
from monolith.util.protobuf import fields

_NUM, _OPT = 2, 3  # fields of EntryDump
_LEAST_BYTES, _FLOAT_BYTES = 25, 5  # of a record with an id alone, and of each number


class Kind(NamedTuple):
    """An optimizer of the reference system.

    Attributes:
        name: name of its dump.
        number: number of the dump's field in `SingleOptimizerDump`; 0 if it writes no dump.
        has_dim: whether field 1 of the dump has a number for each weight.
    """

    name: str
    number: int
    has_dim: bool = True


# Field i + 1 of a dump is column i of our state; other fields are not used by an update rule.
KINDS: MappingProxyType[type[Optimizer], Kind] = MappingProxyType(
    {
        Adagrad: Kind("adagrad", 1),
        SGD: Kind("sgd", 2, has_dim=False),
        FTRL: Kind("ftrl", 3),
        DynamicWdAdagrad: Kind("dynamic_wd_adagrad", 4),
        Adadelta: Kind("adadelta", 6),
        Adam: Kind("adam", 7),
        AMSGrad: Kind("amsgrad", 8),
        Momentum: Kind("momentum", 9),
        RMSprop: Kind("rmsprop", 11),
        RMSpropV2: Kind("rmspropv2", 12),
        GroupFTRL: Kind("group_ftrl", 13),
        BatchSoftmax: Kind("batch_softmax", 14),  # one integer for the one weight
        GroupAdagrad: Kind("group_adagrad", 15, has_dim=False),
        MovingAverage: Kind("moving_average", 0, has_dim=False),
    }
)
_BY_NUMBER = MappingProxyType({kind.number: kind for kind in KINDS.values() if kind.number})


@dataclass(frozen=True)
class RowLayout:
    """What a record must have to become a row of a table.

    Args:
        config: config of the table.
        kinds: optimizer of each segment; empty if the state is not read.
    """

    config: TableConfig
    kinds: tuple[Kind, ...]

    @property
    def segments(self) -> list[tuple[int, int, list[tuple[int, bool]]]]:
        """Return dim, number of the dump, and size and kind of its fields, as the core reads them.

        Tables with equal segments can take the rows of one dump.
        """
        segments = segments_of(self.config)
        if not self.kinds:
            return [(segment.dim, 0, []) for segment in segments]
        return [
            (segment.dim, kind.number, [_field(column) for column in _state(segment)])
            for segment, kind in zip(segments, self.kinds, strict=True)
        ]

    @property
    def record_bytes(self) -> int:
        """Return about the least size of a record with its frame."""
        numbers = sum(dim + sum(size for size, _ in fields) for dim, _, fields in self.segments)
        return _LEAST_BYTES + _FLOAT_BYTES * numbers

    def name_of(self, segment: int) -> str:
        """Return a segment's name for messages."""
        return f"segment {segment_name(self.config, segment)!r}"

    def field_name(self, segment: int, field: int) -> str:
        """Return the name of a field of a segment's dump for messages."""
        column = _state(segments_of(self.config)[segment])[field]
        return f"{self.kinds[segment].name}.{column.name}"


def layout_of(config: TableConfig, *, with_state: bool) -> RowLayout:
    """Return the layout of a table's rows in a dump.

    Args:
        config: config of the table.
        with_state: whether state is read; otherwise any optimizer is fine.

    Raises:
        InvalidArgumentError: dumps have no state for an optimizer of the table.
    """
    kinds = []
    for i, segment in enumerate(segments_of(config) if with_state else ()):
        kind = KINDS.get(type(segment.optimizer))
        if kind is None:
            names = ", ".join(sorted(optimizer.__name__ for optimizer in KINDS))
            raise InvalidArgumentError(
                f"[reference dump] expected an optimizer whose state a dump can have ({names}), "
                f"got {type(segment.optimizer).__name__} (table {config.name!r}, segment "
                f"{segment_name(config, i)!r}); to begin with fresh state: --weights-only"
            )
        kinds.append(kind)
    return RowLayout(config, tuple(kinds))


def _state(segment: Segment) -> tuple[StateColumn, ...]:
    return segment.optimizer.state(segment.dim)


def _field(column: StateColumn) -> tuple[int, bool]:
    return column.size, column.dtype == "int64"


def kind_name(number: int) -> str:
    """Return the name of an optimizer by the number of its dump.

    Example:
        >>> kind_name(3), kind_name(0), kind_name(99)
        ('ftrl', 'no optimizer', 'optimizer 99')
    """
    if not number:
        return "no optimizer"
    kind = _BY_NUMBER.get(number)
    return f"optimizer {number}" if kind is None else kind.name


@dataclass(frozen=True)
class SegmentFacts:
    """A segment as a record of a dump shows it.

    Args:
        optimizer: name of the optimizer; empty if the record has no dump for the weights.
        dim: number of weights; None if the record does not show it.
    """

    optimizer: str
    dim: int | None


def segments_in(record: bytes) -> list[SegmentFacts]:
    """Return the segments of a row, as far as its record shows them.

    Optimizers without state for each weight leave the number of their weights open. It follows if
    only one segment does.

    Raises:
        DataLossError: the record is no `EntryDump`.
    """
    dim, opts = 0, b""
    for field, value in fields(record):
        dim += field == _NUM
        opts += value if field == _OPT and isinstance(value, bytes) else b""
    facts = [_facts_of(dump) for field, dump in fields(opts) if field == 1]
    rest = dim - sum(fact.dim or 0 for fact in facts)
    unknown = [i for i, fact in enumerate(facts) if fact.dim is None]
    if not unknown:
        return [*facts, SegmentFacts("", rest)] if rest else facts
    if len(unknown) == 1:
        facts[unknown[0]] = replace(facts[unknown[0]], dim=rest)
    return facts


def _facts_of(dump: int | bytes) -> SegmentFacts:
    """Return optimizer and dim of a `SingleOptimizerDump`."""
    for number, state in fields(dump) if isinstance(dump, bytes) else ():
        kind = _BY_NUMBER.get(number)
        if kind is None or not kind.has_dim or not isinstance(state, bytes):
            return SegmentFacts(kind_name(number), None)
        return SegmentFacts(kind.name, sum(field == 1 for field, _ in fields(state)))
    return SegmentFacts(kind_name(0), None)
