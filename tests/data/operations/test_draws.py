import pyarrow as pa

from monolith.data.operations.draws import Draws, Sampling
from tests.data.operations.blocks import samples_of


class Numbers:
    """A source of 0, 1, ... in blocks of three."""

    def __init__(self, count):
        self.count = count

    def describe(self):
        return ["numbers"]

    def open(self, epoch, state=None):
        return Pass(self.count, 0 if state is None else state["at"])


class Pass:
    def __init__(self, count, at):
        self.count, self.at, self.is_closed = count, at, False

    def next(self):
        numbers = list(range(self.at, min(self.at + 3, self.count)))
        self.at += len(numbers)
        return pa.record_batch({"x": numbers}) if numbers else None

    def state(self):
        return {"at": self.at}

    def progress(self):
        return self.at, self.count

    def close(self):
        self.is_closed = True


def keep_half(block, draws):
    return block.filter(pa.array(draws.uniform(block.num_rows, 7) < 0.5))


def test_draws_do_not_depend_on_the_blocks():
    whole = Draws(1, 0).uniforms(5, 2, 7, 3).tolist()
    assert [
        *Draws(1, 0).uniforms(2, 2, 7, 3).tolist(),
        *Draws(1, 2).uniforms(3, 2, 7, 3).tolist(),
    ] == whole
    assert Draws(1, 0).after(2) == Draws(1, 2)


def test_epochs_seeds_and_streams_differ():
    found = {
        tuple(d.uniform(4, s, k))
        for d in (Draws(0, 0), Draws(1, 0))
        for s in (1, 2)
        for k in (0, 1)
    }
    assert len(found) == 8


def test_a_pass_resumes_at_every_block():
    stage = Sampling(Numbers(30), keep_half, "half")
    cursor, states = stage.open(4), []
    parts = []
    states.append((0, cursor.state()))
    while (found := cursor.next()) is not None:
        parts += found["x"].to_pylist()
        states.append((len(parts), cursor.state()))
    for count, state in states:
        assert samples_of(stage.open(4, state)).get("x", []) == parts[count:]


def test_samples_in_and_out_are_counted():
    stage = Sampling(Numbers(30), keep_half, "half")
    kept = samples_of(stage.open(0))["x"]
    assert stage.counts == {"in": 30, "out": len(kept)}
    assert 0 < len(kept) < 30


def test_progress_and_close_are_those_of_the_source():
    cursor = Sampling(Numbers(30), keep_half, "half").open(0)
    cursor.next()
    assert cursor.progress()[1] == 30
    cursor.close()
    assert cursor._source.is_closed
