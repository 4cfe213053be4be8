"""The pooled verbs: lookups and gradients of keys in bags, without a row per key in between."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from monolith.embedding import checks, reference_bags
from monolith.embedding.arguments import as_list
from monolith.embedding.bags import BagGradients, Bags, GradientSum, PooledRows
from monolith.embedding.calls import TableCalls
from monolith.embedding.rows import Applied

if TYPE_CHECKING:
    import monolith._native as _native

__all__ = ["BagVerbs"]


class BagVerbs(TableCalls):
    """The part of a table that pools. Every table has the meaning from here, by rows of the keys.

    A table that can pool in one pass overrides the methods with an underscore, to the same bits.
    """

    def lookup_bags(
        self,
        bags: Bags,
        *,
        missing: str = "initial",
        step: int = 0,
        num_threads: int | None = None,
    ) -> PooledRows:
        """Pooled weights of the keys of each bag. Stores nothing. Safe with every verb.

        Each row is read as it was at one moment, as by `lookup`; a bag's rows may be of several.

        Args:
            bags: keys, and how they are combined.
            missing: what a missing key reads as, as in `lookup`.
            step: training step, for a `OneBit` view.
            num_threads: most threads to use.

        Returns:
            float32 (num_bags, dim), and the winners of mode "max".
        """
        self._check_bags("lookup_bags", bags)
        initial = self._check_missing("lookup_bags", missing)
        step = checks.check_step(self.config, "lookup_bags", step)
        threads = checks.check_threads(self.config, "lookup_bags", num_threads, bags.num_keys)
        return self._lookup_bags(bags, initial, step, threads)

    def apply_bag_gradients(
        self,
        queue: Sequence[BagGradients] | GradientSum,
        *,
        step: int = 0,
        learning_rates: Sequence[float] | None = None,
        now: int | None = None,
        num_threads: int | None = None,
    ) -> Applied:
        """One optimizer step per distinct key of all the bags. Safe with every verb.

        The same, bit for bit, as one `apply_gradients` of all keys with the gradient of each
        (`BagGradients`); its rows are those that a refusal of non-finite gradients counts.

        Args:
            queue: gradients of pooled rows, in order; or their sum, in one call at a time.
            step: training step.
            learning_rates: one per segment, for this call; each segment's own if None.
            now: time of the update in seconds.
            num_threads: most threads to use.

        Returns:
            Counts of keys applied, inserted, refused and skipped.
        """
        verb = "apply_bag_gradients"
        summed = queue if isinstance(queue, GradientSum) else None
        given = queue.queue if isinstance(queue, GradientSum) else queue
        pieces, num_keys = self._check_queue(verb, given)
        checks.check_training(self.config, verb)
        threads = checks.check_threads(self.config, verb, num_threads, num_keys)
        step = checks.check_step(self.config, verb, step)
        rates = checks.check_rates(self.config, verb, step, learning_rates)
        summed = summed or self._sum_bag_gradients(pieces, threads)
        with self._time(verb, now) as time_now:
            return self._apply_bag_gradients(summed, rates, step, time_now, threads)

    def sum_bag_gradients(
        self, queue: Sequence[BagGradients], *, num_threads: int | None = None
    ) -> GradientSum:
        """The gradient that `apply_bag_gradients` would apply, and its norm. Safe with every verb.

        Its work is not done again if `apply_bag_gradients` gets the sum in place of the queue.

        Args:
            queue: gradients of pooled rows, in order; they stay as they are while the sum is used.
            num_threads: most threads to use.
        """
        verb = "sum_bag_gradients"
        pieces, num_keys = self._check_queue(verb, queue)
        threads = checks.check_threads(self.config, verb, num_threads, num_keys)
        return self._sum_bag_gradients(pieces, threads)

    def bag_weight_gradients(
        self,
        bags: Bags,
        gradients: torch.Tensor,
        *,
        missing: str = "initial",
        step: int = 0,
        num_threads: int | None = None,
    ) -> torch.Tensor:
        """Gradients of the weights in a sum: each key's row times the gradient of its bag.

        Safe with every verb. Reads rows as `lookup_bags` does.

        Args:
            bags: of mode "sum".
            gradients: float32 (num_bags, dim), of the pooled rows.
            missing: what a missing key reads as, as in `lookup`.
            step: training step, for a `OneBit` view.
            num_threads: most threads to use.

        Returns:
            float32 (num_keys,): dot products, as 8 partial sums with lane = column % 8, combined
            as contract 3 says.
        """
        verb = "bag_weight_gradients"
        self._check_bags(verb, bags)
        if bags.mode != "sum":
            raise ValueError(
                f"[Table.{verb}] expected bags of mode 'sum', got {bags.mode!r} "
                f"(table {self.name!r})"
            )
        checks.check_matrix(self.config, verb, "gradients", gradients, (bags.num_bags, self.dim))
        initial = self._check_missing(verb, missing)
        step = checks.check_step(self.config, verb, step)
        threads = checks.check_threads(self.config, verb, num_threads, bags.num_keys)
        return self._bag_weight_gradients(bags, gradients, initial, step, threads)

    def _check_bags(self, verb: str, bags: Bags) -> None:
        self._check_open(verb)
        if not isinstance(bags, Bags):
            raise TypeError(
                f"[Table.{verb}] expected bags as Bags, got {type(bags).__name__} "
                f"(table {self.name!r})"
            )
        checks.check_num_keys(self.config, verb, bags.num_keys)

    def _check_queue(
        self, verb: str, queue: Sequence[BagGradients]
    ) -> tuple[list[BagGradients], int]:
        """The queue as a list, and the number of its keys."""
        self._check_open(verb)
        which = f"(table {self.name!r})"
        pieces = as_list(f"[Table.{verb}]", "queue", queue, f" {which}")
        for piece in pieces:
            if not isinstance(piece, BagGradients):
                raise TypeError(
                    f"[Table.{verb}] expected BagGradients in the queue, "
                    f"got {type(piece).__name__} {which}"
                )
            shape = (piece.bags.num_bags, self.dim)
            checks.check_matrix(self.config, verb, "gradients", piece.gradients, shape)
        num_keys = sum(piece.bags.num_keys for piece in pieces)
        checks.check_num_keys(self.config, verb, num_keys)
        return pieces, num_keys

    # The meaning, on top of the verbs by key.

    def _lookup_bags(self, bags: Bags, initial: bool, step: int, threads: int) -> PooledRows:
        bags = bags.checked()
        return reference_bags.pool(bags, self._lookup(bags.keys, initial, step, threads))

    def _apply_bag_gradients(
        self, summed: GradientSum, rates: list[float], step: int, now: int, threads: int
    ) -> Applied:
        keys, grads = reference_bags.expand(summed.queue, self.dim)
        return self._apply_gradients(keys, grads, rates, step, now, threads)

    def _sum_bag_gradients(self, queue: list[BagGradients], threads: int) -> GradientSum:
        return GradientSum(queue, reference_bags.gradient_norm(queue, self.dim))

    def _step_core(self) -> "_native.Table | None":
        """What can make this table's step in one call with those of others; None: nothing."""
        return None

    def _bag_weight_gradients(
        self, bags: Bags, gradients: torch.Tensor, initial: bool, step: int, threads: int
    ) -> torch.Tensor:
        rows = self._lookup(bags.keys, initial, step, threads)
        return reference_bags.weight_gradients(bags, rows, gradients)
