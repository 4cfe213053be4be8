# mypy: ignore-errors
"""TensorFlow Recommenders Addons on the CPU: its cuckoo table and its sparse Adagrad.

Run with the interpreter of build/peers/tfra. The fastest calls of its public interface: lookups
and inserts on the variable, `tf.unique` before a training step, tensorflow's version 1 Adagrad
(version 2 is 10 % slower, Keras' newest one fails).
"""

import numpy as np
import tensorflow as tf
import tensorflow_recommenders_addons as tfra

from benchmarks.worker import System, Worker, serve
from benchmarks.workload import (
    INITIAL_ACCUMULATOR,
    LEARNING_RATE,
    Floats,
    Int64s,
    Workload,
    keys_of,
)

embedding = tfra.dynamic_embedding


def set_threads(num_threads: int) -> None:
    """Once per process: tensorflow fixes its threads at the first operation."""
    if tf.config.threading.get_intra_op_parallelism_threads() == 0:
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(num_threads)


class Tfra(System):
    """Tables are sized beforehand where that is allowed: growing costs it most."""

    name = "tfra"

    def versions(self) -> dict[str, str]:
        return {"tfra": tfra.__version__, "tensorflow": tf.__version__}

    def create(self, workload: Workload, *, with_state: bool, presized: bool) -> None:
        set_threads(workload.threads)
        self._variable = embedding.get_variable(
            f"bench_{tf.timestamp().numpy():.6f}",
            dim=workload.dim,
            initializer=0.0,
            init_size=workload.rows if presized else 0,
            devices=["/CPU:0"],
        )
        self._values = tf.random.uniform((workload.batch, workload.dim), -0.05, 0.05)
        self._state = None
        if with_state:
            self._step = self._make_step(workload)

    def _make_step(self, workload: Workload) -> tf.types.experimental.PolymorphicFunction:
        optimizer = embedding.DynamicEmbeddingOptimizer(
            tf.compat.v1.train.AdagradOptimizer(LEARNING_RATE, INITIAL_ACCUMULATOR)
        )

        @tf.function
        def step(keys: tf.Tensor, gradient: tf.Tensor) -> None:
            unique, positions = tf.unique(keys)
            with tf.GradientTape() as tape:
                rows = embedding.embedding_lookup(self._variable, unique, name="lookup")
                output = tf.gather(rows, positions)
            trainable = self._variable.get_trainable_by_name("lookup")
            optimizer.apply_gradients(
                [(tape.gradient(output, trainable, output_gradients=gradient), trainable)]
            )

        # The first step makes the table of accumulators; one key that no batch has.
        step(tf.constant([-1], tf.int64), tf.zeros((1, workload.dim)))
        (self._state,) = self._variable.get_slot_variables(optimizer)
        self._accumulators = tf.fill((workload.batch, workload.dim), INITIAL_ACCUMULATOR)
        return step

    def batch(self, indices: Int64s) -> tf.Tensor:
        return tf.constant(keys_of(indices))

    def tensor(self, array: Floats) -> tf.Tensor:
        return tf.constant(array)

    def assign(self, batch: tf.Tensor, values: tf.Tensor) -> None:
        self._variable.upsert(batch, values)
        if self._state is not None:
            self._state.upsert(batch, self._accumulators[: len(batch)])

    def lookup(self, batch: tf.Tensor) -> tf.Tensor:
        return self._variable.lookup(batch)

    def update(self, batch: tf.Tensor, gradient: tf.Tensor) -> None:
        self._step(batch, gradient)

    def insert(self, batch: tf.Tensor) -> None:
        self._variable.upsert(batch, self._values[: len(batch)])

    def num_rows(self) -> int:
        return int(self._variable.size())

    def close(self) -> None:
        self._variable.clear()  # tensorflow keeps the table itself until the process ends

    def to_numpy(self, output: tf.Tensor) -> Floats:
        return np.asarray(output.numpy())


if __name__ == "__main__":
    serve(Worker(Tfra()))
