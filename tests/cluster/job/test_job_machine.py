"""`JobState` under random workers, deaths and restarts of server 0, against the trained samples."""

import collections
import copy
import json

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from monolith.cluster.job.job_state import REJOIN_SECONDS, JobState
from monolith.cluster.job.job_values import HeldShares, Progress, name_of

pytestmark = pytest.mark.thorough

NUM_WORKERS = 3
WORKERS = st.integers(0, NUM_WORKERS - 1)


class Process:
    """A start of a worker, as `JobClient` and `JobSource` are.

    Attributes:
        is_in: Whether server 0 has heard of this start since it came back.
    """

    def __init__(self, worker, start):
        self.worker, self.start, self.is_in = worker, start, False
        self.held = HeldShares({}, [], 0)
        self.number = self.acknowledged = self.repeats = 0

    @property
    def who(self):
        return self.worker, self.start


class Jobs(RuleBasedStateMachine):
    @initialize(
        lengths=st.lists(st.integers(0, 5), max_size=4),
        epochs=st.integers(1, 2),
        may_be_lost=st.booleans(),
    )
    def begin(self, lengths, epochs, may_be_lost):
        self.may_be_lost = may_be_lost
        self.now, self.num_starts = 0.0, 0
        self.lengths = {str(i): length for i, length in enumerate(lengths)}
        self.epochs = epochs
        self.state = self.new_state()
        self.state.offer(list(self.lengths), epochs)
        self.times = collections.Counter()  # (share, sample) -> how often it was trained
        self.processes = {}
        self.saves = [self.state.export()]
        self.was_lost = False

    def new_state(self):
        return JobState(NUM_WORKERS, lambda: self.now)

    def join(self, process, with_held=False):
        held = {}
        if with_held:
            held = {**vars(process.held), "number": process.number, "repeats": process.repeats}
        answer = self.state.join(*process.who, [process.start], {}, copy.deepcopy(held))
        process.number = process.acknowledged = max(process.number, answer["number"])
        process.held.samples = answer["samples"]
        for share in answer["lost"]:
            del process.held.taken[share]
        process.is_in = True

    def process(self, worker):
        """Return the living process of a worker, which knows server 0."""
        process = self.processes.get(worker)
        if process is None:
            self.num_starts += 1
            process = self.processes[worker] = Process(worker, self.num_starts)
            self.join(process)
        elif not process.is_in:
            self.join(process, with_held=True)
        return process

    def take(self, process):
        finished = [s for s in process.held.taken if self.is_at_end(process, s)]
        process.held.add([(share, None, True, 0) for share in finished])
        taken = self.state.take(*process.who, process.acknowledged, finished)
        if taken.kind == "share":
            process.held.taken[taken.share] = taken.position
        return taken.kind

    def length(self, share):
        return self.lengths[name_of(share)[1]]

    def is_at_end(self, process, share):
        return (process.held.taken[share] or 0) >= self.length(share)

    def train(self, process, share, count):
        position = process.held.taken[share] or 0
        end = min(position + count, self.length(share))
        if end == position:
            return
        self.times.update((share, sample) for sample in range(position, end))
        progress = Progress(share, end, end == self.length(share), end - position)
        process.acknowledged = process.number
        process.number += 1
        _, process.repeats = self.state.note_step(*process.who, process.number, [progress])
        process.held.add([progress])

    @rule(worker=WORKERS)
    def ask(self, worker):
        self.take(self.process(worker))

    @rule(worker=WORKERS, data=st.data(), count=st.integers(1, 3))
    def step(self, worker, data, count):
        process = self.process(worker)
        if process.held.taken:
            share = data.draw(st.sampled_from(sorted(process.held.taken)))
            self.train(process, share, count)

    @rule(worker=WORKERS)
    def acknowledge(self, worker):
        process = self.process(worker)
        process.acknowledged = process.number
        self.state.watch(*process.who, 0, process.acknowledged)

    @rule(worker=WORKERS, how=st.sampled_from(["lease", "silent", "restart", "leave", "unseen"]))
    def end(self, worker, how):
        process = self.processes.pop(worker, None)
        if process is None:
            return
        if how == "lease":
            self.state.lose(process.start)
        elif how == "silent":
            self.state.give_up([worker])
        elif how == "leave":
            self.state.leave(*process.who, process.acknowledged)
        elif how == "restart":
            self.process(worker)
        # unseen: server 0 learns it from a later start of the worker

    @rule()
    def save(self):
        self.saves.append(json.loads(json.dumps(self.state.export())))

    @precondition(lambda self: self.may_be_lost)
    @rule(data=st.data(), early=st.sets(WORKERS))
    def lose_server(self, data, early):
        """Server 0 comes back with an old save; some workers start anew before the load."""
        self.was_lost = True
        number = data.draw(st.integers(0, len(self.saves) - 1))
        self.state = self.new_state()
        for process in self.processes.values():
            process.is_in = False
        for worker in early:
            if self.processes.pop(worker, None) is not None:
                self.process(worker)
        self.state.load(copy.deepcopy(self.saves[number]), with_workers=True)
        self.state.offer(list(self.lengths), self.epochs)
        del self.saves[number + 1 :]

    @precondition(lambda self: self.was_lost)
    @rule()
    def wait(self):
        self.now += REJOIN_SECONDS + 1

    @invariant()
    def no_share_is_with_two_workers(self):
        taken = [s for worker in self.state._workers.values() for s in worker.taken]
        known = [s for p in self.processes.values() if p.is_in for s in p.held.taken]
        returned = [share for share, _ in self.state._returned]
        for shares in (taken + returned, known):
            assert len(set(shares)) == len(shares)

    def teardown(self):
        if not hasattr(self, "state"):
            return
        processes = [self.process(worker) for worker in range(NUM_WORKERS)]
        self.now += REJOIN_SECONDS + 1
        kinds = []
        for _ in range(100):
            kinds = []
            for process in processes:
                for share in sorted(process.held.taken):
                    self.train(process, share, 100)
                process.acknowledged = process.number
                kinds.append(self.take(process))
            if kinds == ["end"] * NUM_WORKERS:
                break
        assert kinds == ["end"] * NUM_WORKERS
        samples = {
            (f'[{epoch}, "{name}"]', sample)
            for epoch in range(self.epochs)
            for name, length in self.lengths.items()
            for sample in range(length)
        }
        assert set(self.times) == samples
        repeats = sum(self.times.values()) - len(samples)
        counts = self.state.counts()
        if self.was_lost:  # what workers that were gone had trained since the save is not known
            assert counts.repeats <= repeats
        else:
            assert (counts.repeats, counts.samples) == (repeats, sum(self.times.values()))
            assert counts.steps == sum(process.number for process in processes)


Jobs.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestJobs = Jobs.TestCase
