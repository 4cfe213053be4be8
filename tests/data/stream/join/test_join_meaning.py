"""A joiner does what the naive join does, however events are cut into blocks, killed or not."""

import tempfile

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.data.stream.join.events import KINDS, block, joiner, labels, labels_of
from tests.data.stream.join.naive_join import NaiveJoin

SHOWN = 1  # kind of the impressions of mixed inputs
NUM_INPUTS = 2

events = st.tuples(
    st.integers(0, 5),  # key
    st.integers(-12, 6),  # time after the clock
    st.sampled_from([SHOWN, SHOWN, *KINDS, 9]),
)


@pytest.fixture(autouse=True)
def no_waits_for_the_disk(monkeypatch):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


class JoinMachine(RuleBasedStateMachine):
    @initialize(
        window=st.integers(1, 8), lateness=st.integers(0, 5), at_once=st.booleans(),
        save_every=st.integers(3, 40), memory_bytes=st.sampled_from([0, 200, 1 << 20]),
    )  # fmt: skip
    def start(self, window, lateness, at_once, save_every, memory_bytes):
        self.folder = tempfile.TemporaryDirectory()
        self.options = {
            "window": window,
            "lateness": lateness,
            "leaves_at_once": at_once,
            "impression": SHOWN,
            "num_inputs": NUM_INPUTS,
            "folder": self.folder.name,
            "files": {"save_every": save_every, "memory_bytes": memory_bytes, "num_kept": 1_000},
        }
        self.joiner = joiner(**self.options)
        self.naive = NaiveJoin(window, lateness, at_once, KINDS, NUM_INPUTS)
        self.clock = self.number = 0
        self.outputs = []
        self.saved = [(self.joiner.state(), 0)]

    def note(self, samples, expected):
        self.outputs.append([(row, *labels_of(sample)) for sample in expected
                             for row in [sample[0]["row"]]])  # fmt: skip
        assert self.rows(samples) == self.outputs[-1]
        self.saved.append((self.joiner.state(), len(self.outputs)))

    @staticmethod
    def rows(samples):
        numbers = [] if samples is None else samples["row"].to_pylist()
        return [(row, *rest) for row, rest in zip(numbers, labels(samples), strict=True)]

    @rule(source=st.integers(0, NUM_INPUTS - 1), many=st.lists(events, min_size=1, max_size=12),
          steps=st.integers(0, 9))  # fmt: skip
    def add(self, source, many, steps):
        rows, expected = [], []
        for key, ahead, kind in many:
            self.clock += steps
            self.number += 1
            row = {"key": key, "time": self.clock + ahead, "row": self.number}
            rows.append({**row, "kind": kind})
            expected += self.naive.add(source, row, None if kind == SHOWN else kind)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        self.note(self.joiner.add(block(columns), source, self.number), expected)

    @rule(source=st.integers(0, NUM_INPUTS - 1))
    def leave_out(self, source):
        self.note(self.joiner.leave_out(source), self.naive.leave_out(source))

    @rule(data=st.data())
    def resume(self, data):
        state, number = data.draw(st.sampled_from(self.saved[-20:]))
        self.joiner = joiner(**self.options, state=state)
        assert self.joiner.state()["positions"] == state["positions"]
        assert [self.rows(samples) for samples in self.joiner.replay()] == self.outputs[number:]

    @invariant()
    def counts_agree(self):
        ours, theirs = self.joiner.counts, self.naive.counts
        names = [name for name in ours if "negatives" not in name]
        assert {name: ours[name] for name in names} == {name: theirs[name] for name in names}
        assert ours["negatives"] == theirs["all_negatives"]
        assert self.joiner.watermark == self.naive.mark

    def teardown(self):
        if hasattr(self, "joiner"):
            self.note(self.joiner.finish(), self.naive.finish())
            self.folder.cleanup()


JoinMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=20)
test_machine = JoinMachine.TestCase
