"""Blocks of events for joiners, and the samples that leave as plain values."""

import pyarrow as pa

from monolith.data.stream.join import JoinSettings, OnlineJoiner

KINDS = (5, 6, 7)  # "click" is 5 or 6, "buy" is 7
LABELS = {"click": [5, 6], "buy": [7]}


def settings(window=10, **options):
    return JoinSettings("key", window, LABELS, **options)


def shown(*pairs, **columns):
    """Impressions of (key, time)."""
    names = {"key": [key for key, _ in pairs], "time": [time for _, time in pairs]}
    return block({**names, **columns})


def acted(*rows):
    """Actions of (key, time, kind)."""
    keys, times, kinds = zip(*rows, strict=True) if rows else ((), (), ())
    return block({"key": keys, "time": times, "kind": kinds})


def block(columns):
    return pa.record_batch({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def keys(samples):
    return [] if samples is None else samples["key"].to_pylist()


def labels(samples):
    """(key, click, buy) of each sample."""
    rows = [] if samples is None else samples.to_pylist()
    return [(row["key"], row["click"], row["buy"]) for row in rows]


def labels_of(sample):
    """The same of a sample of `NaiveJoin`."""
    row, kinds = sample
    return row["key"], float(bool(kinds & {5, 6})), float(7 in kinds)


def joiner(window=10, *, num_inputs=2, folder=None, state=None, files=None, **options):
    chosen = settings(window, **options)
    return OnlineJoiner(chosen, num_inputs, folder=folder, state=state, **(files or {}))
