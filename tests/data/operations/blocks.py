"""Blocks of plain lists, and passes that stop and go on."""

import json

import numpy as np
import pyarrow as pa

from monolith.data.operations.draws import Draws

IDS = pa.list_(pa.int64())


def column(values):
    """Ints are ids, floats are numbers; lists of ints are lists of ids, of floats of one width."""
    if not isinstance(values[0], list):
        return pa.array(values, pa.int64() if isinstance(values[0], int) else pa.float32())
    if any(isinstance(each, float) for row in values for each in row):
        return pa.array(values, pa.list_(pa.float32(), len(values[0])))
    return pa.array(values, IDS)


def block(**columns):
    return pa.record_batch({name: column(values) for name, values in columns.items()})


def drawn(operation, given, *, epoch=0, first=0):
    """What an operation with random numbers makes of a block."""
    return operation(given, Draws(epoch, first))


def rows(found):
    """A block as lists, column by column."""
    return {name: found.column(name).to_pylist() for name in found.schema.names}


def samples_of(cursor):
    """All that is left of a pass, as one table."""
    blocks = []
    while (found := cursor.next()) is not None:
        blocks.append(found)
    return pa.Table.from_batches(blocks).to_pydict() if blocks else {}


def check_resume(pipeline, num_batches=7, seed=0):
    """Stops after some random batches; a new pass from the JSON of the state gives the rest."""
    stops = np.random.default_rng(seed).integers(0, 40, num_batches)
    whole = read(iter(pipeline))
    for stop in [0, *stops.tolist(), len(whole)]:
        batches = iter(pipeline)
        for _ in range(min(stop, len(whole))):
            next(batches)
        state = json.loads(json.dumps(batches.state_dict()))
        batches.close()
        assert read(pipeline.resume(state)) == whole[min(stop, len(whole)) :]
    return whole


def read(batches):
    """All that is left of an iteration, which is closed."""
    found = [batch_lists(batch) for batch in batches]
    batches.close()
    return found


def batch_lists(batch):
    features = {name: each.to_lists() for name, each in batch.features.items()}
    floats = {name: each.tolist() for name, each in (*batch.dense.items(), *batch.labels.items())}
    weight = None if batch.weight is None else batch.weight.tolist()
    return features, floats, weight
