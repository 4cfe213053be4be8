"""Rows of the reference table: admission, budget, expiry."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from monolith.table.config import TableConfig, row_bytes
from monolith.table.eviction import candidate_columns
from monolith.table.key_sums import Matrix
from monolith.table.reference.candidates import Question, make_admission
from monolith.table.rules import EMPTY_TABLE_BYTES

_INDEX_BYTES = 48  # nominal index bytes of a row
_NUM_SAMPLED = 16
_MAX_USES = 255
_AGEING_PERIOD = 8  # number of samplings between two halvings of use counts


def tensors_of(columns: Mapping[str, NDArray[np.int64]]) -> dict[str, torch.Tensor]:
    """Return columns of candidates as tensors."""
    return {name: torch.from_numpy(column) for name, column in columns.items()}


class ReferenceRow(NamedTuple):
    """One row."""

    time: int
    values: Matrix  # (width,): decoded weights of all segments, then state; an int64 is two words
    uses: int = 0  # number of writing calls, halved by sampling


class ReferenceRows:
    """Rows by key, under the table's rules. The caller holds the table's lock.

    Args:
        config: settings of the table.
        note: function that receives the keys of every change.
    """

    def __init__(self, config: TableConfig, note: Callable[[Iterable[int]], None]) -> None:
        assert config.seed is not None  # the config's constructor sets the seed
        self._config = config
        self._note = note
        self._row_bytes = row_bytes(config) - _INDEX_BYTES
        self._random = random.Random(config.seed)
        self.rows: dict[int, ReferenceRow] = {}
        self.admission = make_admission(config)
        self.counters: Counter[str] = Counter()

    def put(self, keys: Sequence[int], values: Matrix, times: Sequence[int]) -> int:
        """Insert or replace rows of distinct keys; return the number of new keys."""
        num_before = len(self.rows)
        for key, row, time in zip(keys, values.copy(), times, strict=True):
            uses = self.rows[key].uses + 1 if key in self.rows else 1
            self.rows[key] = ReferenceRow(time, row, min(uses, _MAX_USES))
        self._note(keys)
        num_inserted = len(self.rows) - num_before
        self.counters["inserted"] += num_inserted
        return num_inserted

    def remove(self, keys: Collection[int], counter: str) -> None:
        """Remove existing rows."""
        for key in keys:
            del self.rows[key]
        self._note(keys)
        self.counters[counter] += len(keys)

    def admit(self, keys: Sequence[int], now: int, call: int) -> list[int]:
        """Return the positions of occurrences whose keys have or get a row; count the others."""
        occurrences = Counter(keys)
        refused = set()
        for key, count in occurrences.items():
            if key in self.rows or not self.admission.has_rule(key):
                continue
            question = Question(key, count, now, call, may_grow=self._may_remember())
            if not self.admission.ask(question):
                refused.add(key)
        self.counters["refused"] += len(refused)
        refused |= self.make_room([key for key in occurrences if key not in refused])
        return [i for i, key in enumerate(keys) if key not in refused]

    def make_room(self, keys: Iterable[int]) -> set[int]:
        """Make room for new keys; return and count the keys that get no room.

        Rows of the call itself are not removed.
        """
        budget, call_keys = self._config.budget, set(keys)
        refused: set[int] = set()
        if budget is None:
            return refused
        num_new = 0
        for key in [key for key in keys if key not in self.rows]:
            num_new += 1
            if self._fits(num_new * (self._row_bytes + _INDEX_BYTES)):
                continue
            others = [other for other in self.rows if other not in call_keys]
            if budget.policy == "refuse" or not others:
                refused.add(key)
                num_new -= 1
            else:
                self.remove([self._victim(others, budget.policy)], "evicted_for_budget")
        self.counters["refused"] += len(refused)
        return refused

    def _victim(self, keys: Sequence[int], policy: str) -> int:
        sampled = self._random.sample(keys, min(_NUM_SAMPLED, len(keys)))
        if policy == "evict_oldest":
            return min(sampled, key=lambda key: self.rows[key].time)
        victim = min(sampled, key=lambda key: (self.rows[key].uses, self.rows[key].time))
        if self.counters["evicted_for_budget"] % _AGEING_PERIOD == 0:
            for key in sampled:
                self.rows[key] = self.rows[key]._replace(uses=self.rows[key].uses // 2)
        return victim

    def evict(self, reference: int) -> int:
        """Remove expired rows."""
        expiry = self._config.expiry
        assert expiry is not None
        expired = [
            key for key, row in self.rows.items() if reference - row.time >= expiry.seconds_of(key)
        ]
        self.remove(expired, "evicted")
        return len(expired)

    def export_candidates(self, partitions: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return the columns of `Table.export_candidates`."""
        return tensors_of(self.admission.columns(partitions))

    def import_candidates(self, columns: dict[str, torch.Tensor]) -> None:
        """Import checked columns, as far as the budget allows."""
        values = {name: columns[name].numpy() for name in candidate_columns(self._config)}
        self.admission.load(values, self._may_remember)

    def _may_remember(self) -> bool:
        return self._fits(self.admission.growth_bytes)

    def clear(self) -> None:
        """Remove rows and candidates."""
        self.remove(list(self.rows), "erased")
        self.admission.clear()

    # Facts

    def memory_report(self) -> dict[str, int]:
        """Return nominal bytes by use."""
        report = {
            "row_bytes": len(self.rows) * self._row_bytes,
            "index_bytes": len(self.rows) * _INDEX_BYTES,
            "candidate_bytes": self.admission.num_bytes,
        }
        not_in_total = {"cut_bytes": 0, "log_bytes": 0, "spare_log_bytes": 0}
        return {**report, **not_in_total, "total_bytes": sum(report.values())}

    def _fits(self, num_bytes: int) -> bool:
        budget = self._config.budget
        if budget is None:
            return True
        room = budget.max_bytes - EMPTY_TABLE_BYTES
        return self.memory_report()["total_bytes"] + num_bytes <= room

    def stats(self) -> dict[str, int]:
        """Return counters since construction."""
        counted = ("inserted", "erased", "evicted", "evicted_for_budget", "refused", "skipped")
        return {
            "num_rows": len(self.rows),
            **{f"num_{name}": self.counters[name] for name in counted},
            "num_clamped_times": self.counters["clamped_times"],
            "num_candidates": self.admission.num_candidates,
            "num_dropped_candidates": self.admission.num_dropped,
            "num_filter_overflows": self.admission.num_overflows,
        }
