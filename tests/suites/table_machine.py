"""Random sequences of verbs on a table and on the reference table: equal bit for bit."""

import math

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from monolith.table import (
    BagGradients,
    Bags,
    Constant,
    Expiry,
    FixedR8,
    MinCount,
    OneBit,
    Probabilistic,
    Segment,
    SlidingFilter,
    TableConfig,
    Uniform,
    Zeros,
)
from monolith.table.bags import MODES
from monolith.table.optimizers import SGD, Adagrad, Adam, BatchSoftmax
from monolith.table.reference import ReferenceTable
from tests.suites.table_base import (
    EDGE_KEYS,
    NOW,
    assert_equal_rows,
    assert_same_bits,
    assert_same_rows,
    exported,
    keys_of_hashes,
    random_keys,
)

CONFIGS = {
    "sgd": TableConfig("user", Segment(1, SGD(0.5))),
    "two-segments": TableConfig(
        "user", [Segment(3, SGD(0.5), Constant(0.25)), Segment(5, Adagrad(0.1), Uniform(-1, 1))]
    ),
    "weight-decay": TableConfig("user", Segment(16, Adagrad(0.3, 0.0, 0.01))),
    "integer-state": TableConfig("user", [Segment(1, BatchSoftmax()), Segment(4, Adam(0.1))]),
    "zeros-skip": TableConfig("user", Segment(33, SGD(1.0), Zeros()), non_finite="skip"),
    "negative-zeros-clip": TableConfig(
        "user", Segment(8, Adagrad(1.0), Constant(-0.0)), non_finite="clip", clip_value=4.0
    ),
    "fp16": TableConfig("user", Segment(19, Adagrad(0.3), precision="fp16")),
    "bf16-beside-fp32": TableConfig(
        "user",
        [
            Segment(3, SGD(0.5), precision="bf16"),
            Segment(33, Adagrad(0.1), Uniform(-1, 1), precision="bf16"),
            Segment(2, SGD(0.5)),
            Segment(5, Adagrad(0.2), precision="fp16"),
        ],
    ),
    "views": TableConfig(
        "user",
        [
            Segment(5, SGD(0.5), view=FixedR8(0.5)),
            Segment(9, Adagrad(0.5), Uniform(-3, 3), view=OneBit(10)),
            Segment(7, Adagrad(0.5), Uniform(-3, 3), precision="fp16", view=OneBit(1, 2.0)),
        ],
    ),
    "min-count": TableConfig(
        "user",
        Segment(2, SGD(0.5), precision="bf16"),
        non_finite="skip",
        admission=MinCount(2, {0: 3, 32767: 0}, max_bytes=2 * 16 * 4096, ttl_seconds=500_000),
        expiry=Expiry(5, {0: 3, 16384: 0}),
    ),
    "min-count-roomy": TableConfig(
        "user", Segment(1, view=OneBit(10)), admission=MinCount(1), expiry=Expiry(6, {32767: 2})
    ),
    "sliding-filter": TableConfig(
        "user", Segment(1), admission=SlidingFilter(2, {0: 1}, 1, 150), expiry=Expiry(9)
    ),
    "probabilistic": TableConfig("user", Segment(1), admission=Probabilistic(3, {0: 2})),
    "equal-probability": TableConfig("user", Segment(1), admission=Probabilistic(3, {}, True)),
}

SPECIAL = np.array([0.0, -0.0, -0.0, 1e-45, -1e-30, 1.0, -1.0, 1e15, 2.0**24, 3.4e-38], np.float32)

_NEAR = [(0xABC << 52) | i for i in range(4)] + [(i << 40) | 0x1234567890 for i in range(4)]
POOL = [*EDGE_KEYS, *keys_of_hashes(_NEAR).tolist(), *range(2, 10)]

batches = st.lists(st.sampled_from(POOL), max_size=12)
seeds = st.integers(0, 2**32 - 1)
nows = st.none() | st.integers(0, NOW + 4000)
threads = st.sampled_from([None, 1, 2, 3])
steps = st.sampled_from([0, 9, 10, 2500])


def make_floats(seed, shape, with_bad=False):
    """Random float32 values, many of them special ones; now and then NaN or Inf."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape, np.float32)
    values = np.where(random.random(shape) < 0.4, random.choice(SPECIAL, shape), values)
    if with_bad:
        bad = np.float32([np.nan, np.inf, -np.inf])
        values = np.where(random.random(shape) < 0.02, random.choice(bad, shape), values)
    return torch.from_numpy(values)


class PairMachine(RuleBasedStateMachine):
    """Every rule does the same to both tables and compares what they return."""

    def __init__(self, make, config):
        super().__init__()
        self.tables = [factory(config, clock=lambda: NOW) for factory in (make, ReferenceTable)]
        self.config = config

    def both(self, verb, *arguments, **options):
        return [getattr(table, verb)(*arguments, **options) for table in self.tables]

    def floats(self, seed, n, with_bad=False):
        return make_floats(seed, (n, self.config.dim), with_bad)

    def teardown(self):
        assert_same_rows(*self.tables)
        for table in self.tables:
            table.close()


class TableMachine(PairMachine):
    """Rules for all verbs of one thread, except cuts and changes."""

    @rule(
        batch=batches,
        missing=st.sampled_from(["initial", "zeros"]),
        step=steps,
        num_threads=threads,
    )
    def lookup(self, batch, missing, step, num_threads):
        options = {"missing": missing, "step": step, "num_threads": num_threads}
        assert_same_bits(*self.both("lookup", torch.tensor(batch, dtype=torch.int64), **options))

    @rule(batch=batches)
    def contains_and_entries(self, batch):
        numbers = torch.tensor(batch, dtype=torch.int64)
        assert_same_bits(*self.both("contains", numbers))
        first, second = self.both("lookup_entry", numbers)
        assert_same_bits(first.present, second.present)
        assert_equal_rows(first.rows, second.rows)

    @rule(batch=batches, step=steps, now=nows, num_threads=threads)
    def lookup_or_insert(self, batch, step, now, num_threads):
        numbers = torch.tensor(batch, dtype=torch.int64)
        options = {"step": step, "now": now, "num_threads": num_threads}
        assert_same_bits(*self.both("lookup_or_insert", numbers, **options))

    @rule(
        verb=st.sampled_from(["assign", "assign_add"]),
        batch=batches,
        seed=seeds,
        now=nows,
        num_threads=threads,
    )
    def write(self, verb, batch, seed, now, num_threads):
        numbers = torch.tensor(batch, dtype=torch.int64)
        values = self.floats(seed, len(batch))
        self.both(verb, numbers, values, now=now, num_threads=num_threads)

    @rule(
        batch=batches,
        seed=seeds,
        step=steps,
        now=nows,
        rate=st.none() | st.sampled_from([0.0, 0.5, 1e-50]),
        num_threads=threads,
    )
    def apply_gradients(self, batch, seed, step, now, rate, num_threads):
        with_bad = self.config.non_finite != "refuse"
        grads = self.floats(seed, len(batch), with_bad)
        rates = None if rate is None else [rate] * len(self.config.segments)
        first, second = self.both(
            "apply_gradients",
            torch.tensor(batch, dtype=torch.int64),
            grads,
            step=step,
            learning_rates=rates,
            now=now,
            num_threads=num_threads,
        )
        assert first == second

    @rule(seed=seeds, n=st.integers(100, 3000), num_threads=threads)
    def apply_large(self, seed, n, num_threads):
        numbers = random_keys(n, seed=seed % 5)
        numbers[::3] = numbers[0]
        first, second = self.both(
            "apply_gradients", numbers, self.floats(seed, n), num_threads=num_threads
        )
        assert first == second

    def bags(self, batch, seed, mode):
        """The keys in bags of up to 4, some of them empty."""
        random = np.random.default_rng(seed)
        ends = np.sort(random.integers(0, len(batch) + 1, len(batch) // 2))
        row_splits = torch.tensor([0, *ends.tolist(), len(batch)])
        is_weighted = mode == "sum" and seed % 2 == 0
        weights = make_floats(seed, len(batch)) if is_weighted else None
        return Bags(torch.tensor(batch, dtype=torch.int64), row_splits, mode, weights)

    @rule(batch=batches, seed=seeds, mode=st.sampled_from(MODES), step=steps, num_threads=threads)
    def lookup_bags(self, batch, seed, mode, step, num_threads):
        bags = self.bags(batch, seed, mode)
        options = {"step": step, "num_threads": num_threads}
        first, second = self.both("lookup_bags", bags, **options)
        assert_same_bits(first.values, second.values)
        if mode == "max":
            assert_same_bits(first.winners, second.winners)
        if mode == "sum":
            grads = self.floats(seed, bags.num_bags)
            assert_same_bits(*self.both("bag_weight_gradients", bags, grads, **options))

    @rule(
        pieces=st.lists(st.tuples(batches, seeds, st.sampled_from(MODES)), max_size=3),
        step=steps,
        now=nows,
        num_threads=threads,
    )
    def apply_bag_gradients(self, pieces, step, now, num_threads):
        with_bad = self.config.non_finite != "refuse"
        queue = []
        for batch, seed, mode in pieces:
            bags = self.bags(batch, seed, mode)
            grads = self.floats(seed, bags.num_bags, with_bad)
            queue.append(BagGradients(bags, grads, self.tables[1].lookup_bags(bags).winners))
        first, second = self.both("sum_bag_gradients", queue, num_threads=num_threads)
        assert first.norm == second.norm or (math.isnan(first.norm) and math.isnan(second.norm))
        options = {"step": step, "now": now, "num_threads": num_threads}
        first, second = self.both("apply_bag_gradients", first if step % 2 else queue, **options)
        assert first == second

    @rule(batch=batches, now=nows)
    def reinitialize(self, batch, now):
        numbers = torch.tensor(batch, dtype=torch.int64)
        assert_same_bits(*self.both("reinitialize", numbers, now=now))

    @rule(batch=batches)
    def erase(self, batch):
        assert_same_bits(*self.both("erase", torch.tensor(batch, dtype=torch.int64)))

    @rule(seed=seeds)
    def erase_large(self, seed):
        numbers = random_keys(3000, seed=seed % 5)
        assert_same_bits(*self.both("erase", numbers[seed % 3 :: 2].contiguous()))

    @rule(seed=seeds)
    def import_again(self, seed):
        rows = exported(self.tables[1])
        if len(rows):
            self.both("erase", rows.keys[::2].contiguous())
            self.both("import_rows", rows)

    @rule(now=st.none() | st.integers(0, 2 * NOW))
    def evict(self, now):
        first, second = self.both("evict", now)
        assert first == second

    @rule(start=st.integers(0, 4095))
    def move_candidates(self, start):
        columns = self.check_candidates(range(start, min(start + 512, 4096)))
        self.both("import_candidates", columns)

    def check_candidates(self, partitions=None):
        first, second = self.both("export_candidates", partitions)
        assert first.keys() == second.keys()
        for name in first:
            assert_same_bits(first[name], second[name])
        return first

    @rule()
    def clear(self):
        self.both("clear")

    @rule(start=st.integers(0, 4095), chunk_rows=st.sampled_from([1, 3, 1000]))
    def export(self, start, chunk_rows):
        options = {"partitions": range(start, min(start + 512, 4096)), "chunk_rows": chunk_rows}
        assert_equal_rows(*(exported(table, **options) for table in self.tables))

    @invariant()
    def counters_are_equal(self):
        stats, expected = self.both("stats")
        assert {name: stats[name] for name in expected} == expected
        assert self.tables[0].latest_time == self.tables[1].latest_time
        first, second = self.tables
        assert first.num_update_calls == second.num_update_calls

    def teardown(self):
        self.check_candidates()
        super().teardown()


def check_random_verbs(make, config, max_examples=None, phases=tuple(Phase), machine=TableMachine):
    """Fails with the shortest sequence of verbs that makes the tables differ."""
    run_state_machine_as_test(
        lambda: machine(make, config),
        settings=settings(
            max_examples=max_examples or settings().max_examples // 2,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            database=None,
            phases=phases,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
