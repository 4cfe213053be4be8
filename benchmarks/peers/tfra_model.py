# mypy: ignore-errors
"""The click model on one dynamic variable of TFRA, with the layers in tensorflow.

Run with the interpreter of build/peers/tfra. Its fastest form, as in tfra.py: one table for all
features, `tf.unique` before the lookup, version 1 Adagrad, the whole step in one `tf.function`.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_recommenders_addons as tfra

from benchmarks.click_model import (
    DIM,
    NUM_DENSE,
    NUM_FEATURES,
    Batch,
    ClickSystem,
    ClickWorker,
    Sizes,
    flat_of,
    keys_of,
    towers,
)
from benchmarks.peers.tfra import embedding, set_threads
from benchmarks.worker import serve
from benchmarks.workload import INITIAL_ACCUMULATOR, LEARNING_RATE, Floats, Int64s

_NUM = NUM_FEATURES + 1
_ROW, _COLUMN = np.tril_indices(_NUM, -1)
_PAIRS = _ROW * _NUM + _COLUMN
_PLACES = np.full((_NUM, _NUM), len(_PAIRS))  # of each product among the pairs; the end: none
_PLACES[_ROW, _COLUMN] = _PLACES[_COLUMN, _ROW] = np.arange(len(_PAIRS))


@tf.custom_gradient
def dots(vectors: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Dot products of all pairs; tensorflow's own gradient of a gather is much slower."""
    products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), (-1, _NUM * _NUM))

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        padded = tf.pad(upstream, [[0, 0], [0, 1]])
        both = tf.reshape(tf.gather(padded, _PLACES.reshape(-1), axis=1), (-1, _NUM, _NUM))
        return tf.matmul(both, vectors)

    return tf.gather(products, _PAIRS, axis=1), gradient


class TfraModel(ClickSystem):
    """The table is sized beforehand: growing costs it most."""

    def versions(self) -> dict[str, str]:
        return {"tfra": tfra.__version__, "tensorflow": tf.__version__}

    def create(self, sizes: Sizes) -> None:
        set_threads(sizes.threads)
        self._sizes = sizes
        self._rows = embedding.get_variable(
            "rows",
            dim=DIM,
            initializer=0.0,
            init_size=NUM_FEATURES * sizes.rows,
            devices=["/CPU:0"],
        )
        self._towers = [
            [(tf.Variable(weight.T), tf.Variable(bias)) for weight, bias in tower]
            for tower in towers(sizes.model)
        ]
        self._layers = [pair for tower in self._towers for pair in tower]
        self._optimizer = embedding.DynamicEmbeddingOptimizer(
            tf.compat.v1.train.AdagradOptimizer(LEARNING_RATE, INITIAL_ACCUMULATOR)
        )
        self._step = tf.function(self._train, reduce_retracing=True)
        # The first step makes the tables of accumulators; a key that no batch has.
        dense = tf.zeros((1, NUM_DENSE))
        self._step(dense, tf.constant([-1] * NUM_FEATURES, tf.int64), tf.zeros(1))
        self._restore_layers()
        (self._state,) = self._rows.get_slot_variables(self._optimizer)

    def _restore_layers(self) -> None:
        firsts = [pair for tower in towers(self._sizes.model) for pair in tower]
        for pair, first in zip(self._layers, firsts, strict=True):
            for variable, value in zip(pair, (first[0].T, first[1]), strict=True):
                variable.assign(value)
                accumulator = self._optimizer.get_slot(variable, "accumulator")
                accumulator.assign(tf.fill(variable.shape, INITIAL_ACCUMULATOR))

    def _train(self, dense: tf.Tensor, keys: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        unique, positions = tf.unique(keys)
        variables = [variable for pair in self._layers for variable in pair]
        with tf.GradientTape() as tape:
            rows = embedding.embedding_lookup(self._rows, unique, name="lookup")
            embedded = tf.reshape(tf.gather(rows, positions), (-1, NUM_FEATURES * DIM))
            logits = self._logits(dense, embedded)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, tf.squeeze(logits, 1))
            loss = tf.reduce_mean(losses)
        variables.append(self._rows.get_trainable_by_name("lookup"))
        gradients = tape.gradient(loss, variables)
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def _logits(self, dense: tf.Tensor, embedded: tf.Tensor) -> tf.Tensor:
        if self._sizes.model == "click":
            return self._tower(0, tf.concat([dense, embedded], 1))
        numbers = self._tower(0, dense)
        vectors = tf.reshape(tf.concat([numbers, embedded], 1), (-1, NUM_FEATURES + 1, DIM))
        return self._tower(1, tf.concat([numbers, dots(vectors)], 1))

    def _tower(self, number: int, hidden: tf.Tensor) -> tf.Tensor:
        """The last layer of the last tower has no ReLU."""
        is_last = number == len(self._towers) - 1
        for place, (weight, bias) in enumerate(self._towers[number], 1):
            hidden = tf.nn.bias_add(tf.matmul(hidden, weight), bias)
            if not is_last or place < len(self._towers[number]):
                hidden = tf.nn.relu(hidden)
        return hidden

    def insert(self, flat: Int64s) -> None:
        self.assign(flat, tf.random.uniform((len(flat), DIM), -0.05, 0.05))

    def assign(self, flat: Int64s, values: Floats) -> None:
        keys = tf.constant(keys_of(flat, self._sizes.rows))
        self._rows.upsert(keys, tf.convert_to_tensor(values))
        self._state.upsert(keys, tf.fill((len(flat), DIM), INITIAL_ACCUMULATOR))

    def prepare(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        keys = keys_of(flat_of(batch.ids, self._sizes.rows), self._sizes.rows)
        return tf.constant(batch.dense), tf.constant(keys.reshape(-1)), tf.constant(batch.labels)

    def train(self, prepared: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return self._step(*prepared)


if __name__ == "__main__":
    serve(ClickWorker(TfraModel()))
