"""`JoinSettings`: which events belong together, for how long, and what makes a label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from monolith.data.columns import Columns
from monolith.data.hashing import hash_strings
from monolith.data.operations.sampling import NegativeSample

Kind = int | str
MAX_KINDS = 62  # kinds of an impression are the bits of one int64
MAX_TIME = 1 << 60  # sums of a time and windows stay in int64
DECIDER = "label"  # column of the blocks that `NegativeSample` sees


@dataclass(frozen=True)
class JoinSettings:
    """Describes how impressions and actions become labelled samples.

    Times, `window` and `lateness` have the unit of the time column: seconds in pipelines.

    Args:
        key: column of the key that an impression shares with its actions; one id for each event.
        window: longest time from an impression to an action that counts, at least 1.
        labels: kinds of actions that set each label to 1. A kind is an id; a string is hashed.
        time: column of the event times.
        kind: column of the kinds of actions. An input without this column has impressions only.
        impression: kind that marks the impressions of an input with both; None if no input has.
        lateness: how much later than the newest event of its input an event may come.
        leaves_at_once: whether a sample leaves with its first action, not when its window closes.
            Later actions of the sample are late.
        negative_rate: share of the samples without an action that are kept, 0 to 1.
        correction: whether a rate below 1 adds the column `log_odds_offset`, multiplies
            `instance_weight` by 1 / rate, or does neither; see `operations.NegativeSample`.
        seed: seed of the choice of negatives, which depends on seed and key only.

    Raises:
        ValueError: an argument is out of range.
        TypeError: the kinds of a label are one string instead of a sequence.
    """

    key: str
    window: int
    labels: Mapping[str, Sequence[Kind]]
    time: str = "time"
    kind: str = "kind"
    impression: Kind | None = None
    lateness: int = 0
    leaves_at_once: bool = False
    negative_rate: float = 1.0
    correction: Literal["offset", "weight"] | None = "offset"
    seed: int = 0
    kinds: tuple[int, ...] = field(init=False, repr=False)
    sampler: NegativeSample | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        where = "[JoinSettings]"
        for name, least in (("window", 1), ("lateness", 0)):
            value = getattr(self, name)
            if not least <= value <= MAX_TIME:
                raise ValueError(f"{where} expected {name} of at least {least}, got {value}")
        if not 0.0 <= self.negative_rate <= 1.0:
            raise ValueError(
                f"{where} expected negative_rate from 0 to 1, got {self.negative_rate}"
            )
        for name, kinds in self.labels.items():
            if isinstance(kinds, str):
                raise TypeError(
                    f"{where} expected a sequence of kinds, got {kinds!r} (label {name!r}); write "
                    f"[{kinds!r}]"
                )
        known = dict.fromkeys(kind_id(kind) for kinds in self.labels.values() for kind in kinds)
        if not 1 <= len(known) <= MAX_KINDS:
            raise ValueError(
                f"{where} expected 1 to {MAX_KINDS} kinds of actions in labels, got {len(known)}"
            )
        if self.impression is not None and kind_id(self.impression) in known:
            raise ValueError(
                f"{where} expected another kind for impressions than for labels, got "
                f"{self.impression!r}"
            )
        object.__setattr__(self, "kinds", tuple(known))
        object.__setattr__(self, "sampler", self._sampler())

    def _sampler(self) -> NegativeSample | None:
        if self.negative_rate == 1.0:
            return None
        return NegativeSample(
            1.0 - self.negative_rate,
            threshold=0.5,
            seed=self.seed,
            correction=self.correction,
            label=DECIDER,
        )

    @property
    def masks(self) -> dict[str, int]:
        """Return the bits of the kinds of each label."""
        place = {kind: number for number, kind in enumerate(self.kinds)}
        return {
            name: sum({1 << place[kind_id(kind)] for kind in kinds})
            for name, kinds in self.labels.items()
        }

    @property
    def adds(self) -> Columns:
        """Columns of a sample that its impression does not have."""
        labels = Columns(labels=list(self.labels))
        return labels if self.sampler is None else labels.plus(self.sampler.adds)


def kind_id(kind: Kind) -> int:
    """Return the id of a kind, as a column of ids has it."""
    return kind if isinstance(kind, int) else int(hash_strings(pa.array([kind]))[0])
