"""A joiner does what the naive join does, however events are cut into blocks, killed or not."""

import copy
import shutil
import tempfile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
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
    """A run is what one joiner did: the samples of each call, and the naive join at the end."""

    @initialize(
        window=st.integers(1, 8), lateness=st.integers(0, 5), at_once=st.booleans(),
        save_every=st.integers(3, 40), memory_bytes=st.sampled_from([0, 200, 1 << 20]),
    )  # fmt: skip
    def start(self, window, lateness, at_once, save_every, memory_bytes):
        self.folder = tempfile.mkdtemp()
        self.options = {
            "window": window,
            "lateness": lateness,
            "leaves_at_once": at_once,
            "impression": SHOWN,
            "num_inputs": NUM_INPUTS,
            "folder": self.folder,
            "files": {"save_every": save_every, "memory_bytes": memory_bytes, "num_kept": 1_000},
        }
        self.joiner = joiner(**self.options)
        self.naive = NaiveJoin(window, lateness, at_once, KINDS, NUM_INPUTS)
        self.clock = self.number = 0
        self.run = {"outputs": [], "naive": self.naive}
        self.saved = [(self.joiner.state(), self.run, 0)]

    def note(self, samples, expected):
        rows = [(row["row"], *labels_of((row, kinds))) for row, kinds in expected]
        assert self.rows(samples) == rows
        self.run["outputs"].append(rows)
        self.saved.append((self.joiner.state(), self.run, len(self.run["outputs"])))

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
        """Go on at a state, after what its joiner did until it was killed."""
        state, run, number = data.draw(st.sampled_from(self.saved[-20:]))
        self.joiner = joiner(**self.options, state=state)
        assert self.joiner.state()["positions"] == state["positions"]
        outputs = run["outputs"][number:]
        assert [self.rows(samples) for samples in self.joiner.replay()] == outputs
        self.naive = copy.deepcopy(run["naive"])
        self.run = {"outputs": list(outputs), "naive": self.naive}
        # Files of states before the snapshot that was resumed may be removed.
        base = state["snapshot"]
        self.saved = [each for each in self.saved if each[0]["snapshot"] >= base]
        self.saved.append((self.joiner.state(), self.run, len(outputs)))

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
            shutil.rmtree(self.folder)


JoinMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=20)
test_machine = JoinMachine.TestCase
