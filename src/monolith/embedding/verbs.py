"""The verbs of a table: their meaning and their checks. Every table derives from here.

A subclass stores rows; it implements `TableStorage` and may trust its arguments. `reference.py` is
the shortest one and defines what each verb does. Reading verbs: `reads.py`; pooled ones:
`bag_verbs.py`; verbs about which rows stay: `retention.py`; cuts and the touched log: `changes.py`.
"""

from collections.abc import Sequence

import torch

from monolith.embedding import checks, serving
from monolith.embedding.bag_verbs import BagVerbs
from monolith.embedding.calls import Clock, wall_clock
from monolith.embedding.changes import ChangeVerbs
from monolith.embedding.reads import ReadVerbs
from monolith.embedding.retention import RetentionVerbs
from monolith.embedding.rows import Applied, Rows

__all__ = ["Clock", "TableVerbs", "wall_clock"]


class TableVerbs(ReadVerbs, BagVerbs, RetentionVerbs, ChangeVerbs):
    """A table: any int64 key -> a trainable row. Duplicate keys are legal in every verb.

    Any two verbs may run at once from any two threads. A call is all or nothing: it is checked
    completely before the first change. A lookup is atomic per row, not per call.

    Args:
        config: what the table is.
        clock: gives the time of a call that has no `now`.
    """

    def lookup_or_insert(
        self,
        keys: torch.Tensor,
        *,
        step: int = 0,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> torch.Tensor:
        """Weights of the keys; missing ones are inserted with initial values. Safe with every verb.

        Args:
            keys: int64 (n,).
            step: training step, for a `OneBit` view.
            now: time of the new rows in seconds; the table's clock if None.
            num_threads: most threads to use.

        Returns:
            float32 (n, dim).
        """
        self._check_keys("lookup_or_insert", keys)
        checks.check_training(self.config, "lookup_or_insert")
        step = checks.check_step(self.config, "lookup_or_insert", step)
        threads = checks.check_threads(self.config, "lookup_or_insert", num_threads, keys.numel())
        with self._time("lookup_or_insert", now) as time_now:
            return self._lookup_or_insert(keys, step, time_now, threads)

    def assign(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Set the weights of the keys; of equal keys the last wins. Safe with every verb.

        A missing key is inserted with fresh optimizer state; an existing one keeps its state.

        Args:
            keys: int64 (n,).
            values: float32 (n, dim).
            now: time of the update in seconds.
            num_threads: most threads to use.
        """
        threads = self._check_values("assign", keys, "values", values, num_threads)
        with self._time("assign", now) as time_now:
            absent = (values == 0).all(dim=1) if self.config.skip_zero else None
            self._assign(keys, values, absent, time_now, threads)

    def assign_add(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Add to the weights; values of equal keys are summed first. Safe with every verb.

        A missing key is inserted, starting from its initial value.

        Args:
            keys: int64 (n,).
            values: float32 (n, dim).
            now: time of the update in seconds.
            num_threads: most threads to use.
        """
        threads = self._check_values("assign_add", keys, "values", values, num_threads)
        with self._time("assign_add", now) as time_now:
            self._assign_add(keys, values, time_now, threads)

    def apply_gradients(
        self,
        keys: torch.Tensor,
        grads: torch.Tensor,
        *,
        step: int = 0,
        learning_rates: Sequence[float] | None = None,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> Applied:
        """One optimizer step per distinct key, on the sum of its gradients. Safe with every verb.

        Args:
            keys: int64 (n,).
            grads: float32 (n, dim).
            step: training step, for schedules and for optimizers that count steps.
            learning_rates: one per segment, for this call; each segment's own if None.
            now: time of the update in seconds.
            num_threads: most threads to use.

        Returns:
            Counts of keys applied, inserted, refused and skipped.
        """
        threads = self._check_values("apply_gradients", keys, "grads", grads, num_threads)
        checks.check_training(self.config, "apply_gradients")
        step = checks.check_step(self.config, "apply_gradients", step)
        rates = checks.check_rates(self.config, "apply_gradients", step, learning_rates)
        with self._time("apply_gradients", now) as time_now:
            return self._apply_gradients(keys, grads, rates, step, time_now, threads)

    def reinitialize(self, keys: torch.Tensor, *, now: int | None = None) -> torch.Tensor:
        """Give the keys fresh rows, creating missing ones. Safe with every verb.

        Returns:
            int32 (n,): 1 where the key existed before the call, 0 where it was created.
        """
        self._check_keys("reinitialize", keys)
        checks.check_training(self.config, "reinitialize")
        with self._time("reinitialize", now) as time_now:
            return self._reinitialize(keys, time_now)

    def erase(self, keys: torch.Tensor) -> torch.Tensor:
        """Remove the keys; a missing one is left alone. Safe with every verb.

        Returns:
            bool (n,): whether the key existed before the call.
        """
        self._check_keys("erase", keys)
        return self._erase(keys)

    def import_rows(self, rows: Rows, *, num_threads: int | None = None) -> None:
        """Insert whole rows, replacing existing ones; of equal keys the last wins.

        Safe with every verb. Times come from the rows. A serving table also takes weights as
        float32, float16 or bfloat16, from a training table's export (`Rows.weights_only`).

        Args:
            rows: with the columns of the table's own exports.
            num_threads: most threads to use.
        """
        self._check_open("import_rows")
        given = rows
        if self._is_serving:
            rows = serving.encoded(self.config, given)
        checks.check_rows(self.config, rows)
        threads = checks.check_threads(self.config, "import_rows", num_threads, len(rows))
        absent = serving.is_zero(self.config, given) if self.config.skip_zero else None
        self._import_rows(rows, absent, threads)

    def clear(self) -> None:
        """Remove every row, candidate and filter count. Safe with every verb."""
        self._check_open("clear")
        self._clear()
