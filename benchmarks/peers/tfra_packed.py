# mypy: ignore-errors
"""TFRA with an optimizer of our own making: weights and accumulator side by side in one row.

No call of TFRA does this; one read and one write of a table instead of two of each make it about
1.5 times as fast as its own optimizer. Measured for honesty, not compared with a target.
"""

import tensorflow as tf

from benchmarks.peers.tfra import Tfra, embedding, set_threads
from benchmarks.worker import Worker, serve
from benchmarks.workload import INITIAL_ACCUMULATOR, LEARNING_RATE, Workload


class TfraPacked(Tfra):
    """Rows are (weights, accumulators)."""

    name = "tfra_packed"

    def create(self, workload: Workload, *, with_state: bool, presized: bool) -> None:
        set_threads(workload.threads)
        self._dim = workload.dim
        self._variable = embedding.get_variable(
            "packed",
            dim=2 * workload.dim,
            initializer=0.0,
            init_size=workload.rows if presized else 0,
            devices=["/CPU:0"],
        )
        self._accumulators = tf.fill((workload.batch, workload.dim), INITIAL_ACCUMULATOR)
        self._step = tf.function(self._train)

    def _train(self, keys: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        unique, positions = tf.unique(keys)
        weights, accumulators = tf.split(self._variable.lookup(unique), 2, axis=1)
        output = tf.gather(weights, positions)
        summed = tf.math.unsorted_segment_sum(gradient, positions, tf.size(unique))
        accumulators += summed * summed
        weights -= LEARNING_RATE * summed * tf.math.rsqrt(accumulators)
        self._variable.upsert(unique, tf.concat([weights, accumulators], 1))
        return output

    def assign(self, batch: tf.Tensor, values: tf.Tensor) -> None:
        rows = tf.concat([values, self._accumulators[: len(batch)]], 1)
        self._variable.upsert(batch, rows)

    def lookup(self, batch: tf.Tensor) -> tf.Tensor:
        return self._variable.lookup(batch)[:, : self._dim]


if __name__ == "__main__":
    serve(Worker(TfraPacked()))
