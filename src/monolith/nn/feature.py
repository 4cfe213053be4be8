"""Declare a feature: which ids of a sample it has, and what the rows of the ids are made of."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from monolith.features.engine import COMBINERS
from monolith.table import Budget, Expiry, Segment, TableConfig, Uniform, Zeros
from monolith.table.arguments import as_integer, as_list, check_kind
from monolith.table.config import segment_name, segments_of
from monolith.table.initializers import Initializer
from monolith.table.optimizers import FTRL, Adagrad, Optimizer
from monolith.table.rules import Admission

BIAS = "bias"
"""Name of the slice of a bias."""

_UNITS = MappingProxyType({"d": 1, "w": 7, "y": 365})
_OF_SLICE = ("optimizer", "initializer", "precision")
_OF_TABLE = (
    *(*_OF_SLICE, "slices", "bias", "admission", "expiry", "budget", "seed"),
    "restore_names",
)


@dataclass(frozen=True)
class Feature:
    """Declare ids of a sample, and the rows that the ids have in a table.

    A feature has a table of its own, named like it, or shares that of another feature. A row is one
    vector of `dim` weights, or several slices, each with its own optimizer, initializer and
    precision (`slices`).

    Args:
        name: of the column in the batch, and of the table.
        dim: weights of a row; None with `slices` or `shares`.
        optimizer: how gradients change a row; its learning rate may be a schedule.
        initializer: values of a new row.
        precision: storage of the weights: "fp32", "fp16" or "bf16".
        slices: parts of a row in place of one vector of `dim`.
        bias: a row has one more weight, before the others, with FTRL and zeros at first; a model
            takes it with `Embedded.bias`.
        combiner: "sum", "mean" or "sqrtn" of the rows of a sample; "first" gives
            (batch, max_length, dim), padded with zeros; "rows" gives (num_ids, dim), the rows of
            all ids of the batch, as they come.
        max_length: number of first ids of a sample that are used; 0 uses all ids.
        shares: name of a feature whose table this one uses; what belongs to the table is said
            there.
        admission: which new ids get a row; all if None.
        expiry: how long a row lives after its last update: an `Expiry`, days, or "90d", "12w".
        budget: bound on the table's memory.
        seed: of initial values; from the name if None.
        restore_names: other names under which a checkpoint may have the table, for example the
            name that the feature had once.

    Example:
        >>> user = Feature("user_id", dim=16, optimizer=Adagrad(0.05), expiry="90d")
        >>> history = Feature("history", shares="user_id", combiner="mean", max_length=50)
        >>> [config.name for config in table_configs([user, history])]
        ['user_id']
    """

    name: str
    dim: int | None = None
    optimizer: Optimizer = field(default_factory=lambda: Adagrad(0.05))
    initializer: Initializer = field(default_factory=Uniform)
    precision: str = "fp32"
    slices: Sequence[Segment] = ()
    bias: bool = False
    combiner: str = "sum"
    max_length: int = 0
    shares: str | None = None
    admission: Admission | None = None
    expiry: Expiry | int | str | None = None
    budget: Budget | None = None
    seed: int | None = None
    restore_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"[Feature] expected a name, got {self.name!r}")
        which = f" (feature {self.name!r})"
        object.__setattr__(
            self, "slices", tuple(as_list("[Feature]", "slices", self.slices, which))
        )
        self._check_restore_names(which)
        check_kind("[Feature]", "bias", self.bias, bool, which=which)
        object.__setattr__(self, "expiry", _as_expiry(self.name, self.expiry))
        self._check_combiner(which)
        if self.shares is None:
            self._check_slices(which)
            self.table_config()
        else:
            self._check_shares(which)

    def _check_restore_names(self, which: str) -> None:
        names = as_list("[Feature]", "restore_names", self.restore_names, which)
        if isinstance(self.restore_names, str) or not all(isinstance(n, str) for n in names):
            raise TypeError(
                f"[Feature] expected restore_names as a sequence of str, got "
                f"{self.restore_names!r}{which}"
            )
        object.__setattr__(self, "restore_names", tuple(names))

    def _check_combiner(self, which: str) -> None:
        if self.combiner not in COMBINERS:
            raise ValueError(
                f"[Feature] expected combiner in {', '.join(COMBINERS)}, got "
                f"{self.combiner!r}{which}"
            )
        if as_integer("[Feature]", "max_length", self.max_length, which) < 0:
            raise ValueError(f"[Feature] expected max_length >= 0, got {self.max_length}{which}")
        if self.combiner == "first" and self.max_length == 0:
            raise ValueError(
                f"[Feature] expected max_length >= 1 with combiner 'first', got 0{which}; it is "
                "the number of rows of a sample"
            )
        if self.combiner == "rows" and self.max_length:
            raise ValueError(
                f"[Feature] expected no max_length with combiner 'rows', got {self.max_length}"
                f"{which}; it gives all rows"
            )

    @property
    def table(self) -> str:
        """The name of the table."""
        return self.shares or self.name

    def table_config(self) -> TableConfig:
        """Return the config of the table of a feature that shares none."""
        if self.dim is not None:
            whole = (self.optimizer, self.initializer, None, self.precision)
            segments = [Segment(self.dim, *whole)]
        else:
            segments = list(self.slices)
        if self.bias:
            named = [replace(part, name=part.name or str(i)) for i, part in enumerate(segments)]
            segments = [bias_segment(), *named]
        expiry = self.expiry
        assert isinstance(expiry, Expiry | None)
        return TableConfig(
            self.name,
            segments,
            seed=self.seed,
            admission=self.admission,
            expiry=expiry,
            budget=self.budget,
        )

    def _check_shares(self, which: str) -> None:
        """Refuse what the other feature decides; `dim` may be repeated."""
        check_kind("[Feature]", "shares", self.shares, str, which=which)
        if self.shares == self.name:
            raise ValueError(
                f"[Feature] expected shares to name another feature, got {self.name!r} itself"
            )
        for name in self._given(_OF_TABLE):
            raise ValueError(
                f"[Feature] expected {name} at the feature that owns the table, got it here "
                f"(feature {self.name!r}, which shares that of {self.shares!r})"
            )

    def _check_slices(self, which: str) -> None:
        if (self.dim is None) == (not self.slices):
            got = "both" if self.slices else "neither"
            raise ValueError(f"[Feature] expected either dim or slices, got {got}{which}")
        for name in self._given(_OF_SLICE) if self.slices else ():
            raise ValueError(
                f"[Feature] expected {name} in each of slices, got it beside them{which}"
            )

    def _given(self, names: Sequence[str]) -> list[str]:
        """Return the options that differ from their defaults."""
        plain = Feature("plain", dim=1)
        return [name for name in names if getattr(self, name) != getattr(plain, name)]


def table_configs(features: Iterable[Feature]) -> list[TableConfig]:
    """Return the configs of the tables of features, in the order of their owners.

    Raises:
        ValueError: two features with one name, or one that shares what there is not.
    """
    listed = list(features)
    owners = {feature.name: feature for feature in listed if feature.shares is None}
    counts = Counter(feature.name for feature in listed)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise ValueError(f"[Feature] expected different names, got several of {', '.join(twice)}")
    for feature in listed:
        if feature.shares is None:
            continue
        if feature.shares not in owners:
            raise ValueError(
                f"[Feature] expected shares to name a feature with a table of its own, got "
                f"{feature.shares!r} (feature {feature.name!r}; tables: {', '.join(owners)})"
            )
        owner = owners[feature.shares]
        dim = owner.table_config().dim - owner.bias
        if feature.dim not in (None, dim):
            raise ValueError(
                f"[Feature] expected dim {dim}, as {feature.shares!r} has, got {feature.dim} "
                f"(feature {feature.name!r}); leave it out"
            )
    return [feature.table_config() for feature in owners.values()]


def bias_segment() -> Segment:
    """Return the segment that stores a bias."""
    return Segment(1, FTRL(initial_accumulator_value=1e-6, beta=1.0), Zeros(), BIAS)


def slice_columns(config: TableConfig) -> dict[str, slice]:
    """Return the columns of each slice of a row, by the name of the slice."""
    columns, start = {}, 0
    for i, segment in enumerate(segments_of(config)):
        columns[segment_name(config, i)] = slice(start, start + segment.dim)
        start += segment.dim
    return columns


def _as_expiry(name: str, given: Expiry | int | str | None) -> Expiry | None:
    if given is None or isinstance(given, Expiry):
        return given
    if isinstance(given, int) and not isinstance(given, bool):
        return Expiry(given)
    match = re.fullmatch(r"(\d+)([dwy])", given) if isinstance(given, str) else None
    if match is None:
        raise ValueError(
            f"[Feature] expected expiry as days, '90d', '12w', '1y' or an Expiry, got {given!r} "
            f"(feature {name!r})"
        )
    return Expiry(int(match[1]) * _UNITS[match[2]])
