"""State the facts of a feature engine as tests. An engine joins in three lines:

```
class TestCore(EngineSuite):
    make = staticmethod(make_core)  # configs, features, clock -> engine
```
"""

import math
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.features import BagFeature, FeatureEngine, PendingGradients, PlainEngine
from monolith.features.autograd import lookup_features
from monolith.features.engine import Gradients
from monolith.ops import Ragged, RaggedColumns
from monolith.table import Expiry, MinCount, Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD, Adagrad, Adam
from monolith.table.reference import ReferenceTable
from tests.suites.table_base import NOW, assert_same_bits, assert_same_rows, exported, keys

CONFIGS = [
    TableConfig("user", Segment(4, Adagrad(0.1))),
    TableConfig("item", [Segment(2, SGD(0.5)), Segment(3, Adam(0.01))]),
    TableConfig("rare", Segment(3, SGD(0.1)), admission=MinCount(2)),
    TableConfig("half", Segment(2, SGD(0.1), precision="fp16")),
    TableConfig("apart", Segment(2, Adagrad(0.1))),
]
FEATURES = [
    BagFeature("visited", "item", "mean"),
    BagFeature("kept", "user", "rows"),
    BagFeature("user", "user"),
    BagFeature("friends", "user", "sqrtn", max_length=3),
    BagFeature("history", "item", "first", max_length=2),
    BagFeature("city", "rare", "sum", max_length=2),
    BagFeature("tags", "half", "mean", max_length=3),
    BagFeature("words", "apart", "rows"),
]
WIDTH = 5 + 4 + 4 + 2 * 5 + 3 + 2
X, Y = BagFeature("x", "a"), BagFeature("y", "b")


def lists(**rows):
    return {name: Ragged.from_lists(value) for name, value in rows.items()}


def one_batch(seed, size=6):
    """Ids from -9 to 8 of each feature, up to 4 of a sample."""
    draw = torch.Generator().manual_seed(seed)
    ids = {}
    for feature in FEATURES:
        lengths = torch.randint(0, 5, (size,), generator=draw)
        values = torch.randint(-9, 9, (int(lengths.sum()),), generator=draw)
        ids[feature.name] = Ragged.from_lengths(values, lengths)
    return ids


def loss_of(outputs):
    """A loss whose gradient differs in every place, and depends on the outputs."""
    parts = [
        (output.square() * torch.linspace(0.5, 1.5, output.numel()).view_as(output)).sum()
        for output in outputs
    ]
    return torch.stack(parts).sum()


def meaning(configs, features, clock):
    return PlainEngine([ReferenceTable(config, clock=clock) for config in configs], features)


def read(pending, ids, *, dense=None, missing="initial"):
    """The matrix and the rows apart, with gradients."""
    return lookup_features(pending, pending.anchor, ids, dense, missing)


def weights_of(engine, table, *ids):
    return engine.tables[table].lookup(keys(*ids), missing="zeros").tolist()


def train(pending, num_steps=4, num_backwards=2):
    """Steps on random batches; the outputs of each lookup."""
    found = []
    for step in range(num_steps):
        for i in range(num_backwards):
            outputs = read(pending, one_batch(10 * step + i))
            loss_of(outputs).backward()
            found += [output.detach() for output in outputs]
        pending.apply()
    return found


class EngineCase:
    """Base of every section. An engine sets `make`: (configs, features, clock) -> engine."""

    make: ClassVar[Callable[..., FeatureEngine]]

    @pytest.fixture(autouse=True)
    def _close_engines(self):
        self._engines = []
        yield
        for engine in self._engines:
            engine.close()

    def build(self, configs=CONFIGS, features=FEATURES, clock=lambda: NOW):
        """An engine of this kind, closed at the end of the test."""
        engine = self.make(configs, features, clock)
        self._engines.append(engine)
        return engine

    def small(self, features=(X, Y), dim=1, **options):
        """Two tables of zeros with rate 1, so that a step is the gradient."""
        configs = [TableConfig(name, Segment(dim, SGD(1.0), Zeros()), **options) for name in "ab"]
        return PendingGradients(self.build(configs, list(features)))


class Lookups(EngineCase):
    """What is read."""

    def test_columns_follow_each_other_in_the_order_of_the_features(self):
        engine = self.build()
        starts = [engine.columns[f.name].start for f in FEATURES if f.name in engine.columns]
        assert (engine.width, starts) == (WIDTH, [0, 5, 9, 13, 23, 26])
        assert list(engine.tables) == [config.name for config in CONFIGS]
        assert [feature.name for feature in engine.features] == [f.name for f in FEATURES]

    def test_rows_apart_have_no_columns(self):
        assert {"kept", "words"}.isdisjoint(self.build().columns)

    @pytest.mark.parametrize(
        ("combiner", "length", "expected"),
        [
            ("sum", 0, [[6.0], [0.0]]),
            ("sum", 2, [[3.0], [0.0]]),
            ("mean", 0, [[2.0], [0.0]]),
            ("sqrtn", 3, [[6 / 3**0.5], [0.0]]),
            ("first", 2, [[1.0, 2.0], [0.0, 0.0]]),
            ("first", 4, [[1.0, 2.0, 3.0, 0.0], [0.0] * 4]),
        ],
    )
    def test_rows_of_a_sample_are_combined(self, combiner, length, expected):
        pending = self.small([BagFeature("x", "a", combiner, length), Y])
        pending.engine.tables["a"].assign(keys(1, 2, 3), torch.tensor([[1.0], [2.0], [3.0]]))
        matrix, _ = pending.engine.lookup(lists(x=[[1, 2, 3], []], y=[[], []]), None, None, "zeros")
        torch.testing.assert_close(matrix[:, pending.engine.columns["x"]], torch.tensor(expected))

    def test_rows_apart_are_those_of_the_ids_in_their_order(self):
        pending = self.small([X, BagFeature("y", "a", "rows")])
        pending.engine.tables["a"].assign(keys(1, 2), torch.tensor([[1.0], [2.0]]))
        _, looked = pending.engine.lookup(lists(x=[[], []], y=[[2, 1], [2]]), None, None, "zeros")
        assert looked.rows["y"].tolist() == [[2.0], [1.0], [2.0]]
        assert looked.num_keys == 3

    def test_a_missing_id_reads_as_it_would_begin_or_as_zeros(self):
        engine = self.build([TableConfig("a", Segment(2))], [X, BagFeature("y", "a", "rows")])
        first = engine.tables["a"].lookup(keys(7))
        for missing, expected in (("initial", first), ("zeros", torch.zeros(1, 2))):
            matrix, looked = engine.lookup(lists(x=[[7]], y=[[7]]), None, None, missing)
            assert_same_bits(matrix, expected)
            assert_same_bits(looked.rows["y"], expected)
        assert len(engine.tables["a"]) == 0

    def test_int32_ids_are_widened(self):
        pending = self.small()
        pending.engine.tables["a"].assign(keys(-3), torch.tensor([[5.0]]))
        ids = {"x": Ragged.from_lists([[-3]], dtype=torch.int32), **lists(y=[[1]])}
        assert pending.engine.lookup(ids, None, None, "zeros")[0].tolist() == [[5.0, 0.0]]

    def test_ids_in_one_memory_read_as_those_apart(self):
        engine, ids = self.build(), one_batch(3)
        matrix, looked = engine.lookup(ids, None, None, "initial")
        found, others = engine.lookup(RaggedColumns.from_ragged(ids), None, None, "initial")
        assert_same_bits(found, matrix)
        for name, rows in looked.rows.items():
            assert_same_bits(others.rows[name], rows)

    def test_ids_of_other_names_are_left_alone(self):
        ids = {**lists(x=[[1]], y=[[2]]), "other": None}
        assert self.small().engine.lookup(ids, None, None, "zeros")[0].shape == (1, 2)

    def test_a_batch_without_ids_reads_zeros(self):
        engine = self.build()
        ids = {feature.name: Ragged.from_lists([[], []]) for feature in FEATURES}
        matrix, looked = engine.lookup(ids, None, None, "initial")
        assert torch.equal(matrix, torch.zeros(2, WIDTH))
        assert [rows.shape for rows in looked.rows.values()] == [(0, 4), (0, 2)]

    def test_a_batch_may_be_empty(self):
        ids = {feature.name: Ragged.from_lists([]) for feature in FEATURES}
        assert self.build().lookup(ids, None, None, "initial")[0].shape == (0, WIDTH)

    @pytest.mark.parametrize("count", [0, 1, 13])
    def test_dense_columns_come_last(self, count):
        engine, ids = self.build(), one_batch(1)
        dense = torch.arange(6.0 * 2 * count).view(6, -1)[:, ::2] if count else torch.empty(6, 0)
        matrix, _ = engine.lookup(ids, None, dense, "initial")
        alone, _ = engine.lookup(ids, None, None, "initial")
        assert_same_bits(matrix.contiguous(), torch.cat([alone, dense], 1))

    def test_a_lookup_stores_nothing(self):
        engine = self.build()
        engine.lookup(one_batch(0), None, None, "initial")
        assert [len(table) for table in engine.tables.values()] == [0] * len(CONFIGS)


class Steps(EngineCase):
    """What is trained."""

    @pytest.mark.parametrize("num_backwards", [1, 3])
    def test_training_has_the_bits_of_the_meaning(self, num_backwards):
        ours = PendingGradients(self.build())
        theirs = PendingGradients(meaning(CONFIGS, FEATURES, lambda: NOW))
        found = train(ours, num_backwards=num_backwards)
        for pair in zip(found, train(theirs, num_backwards=num_backwards), strict=True):
            assert_same_bits(*pair)
        for name, table in theirs.engine.tables.items():
            assert_same_rows(ours.engine.tables[name], table)
            assert ours.engine.tables[name].num_update_calls == table.num_update_calls

    def test_equal_keys_of_all_features_of_a_table_are_one_update(self):
        rows = BagFeature("z", "a", "rows")
        pending = self.small([X, BagFeature("y", "a", "mean"), rows])
        matrix, apart = read(pending, lists(x=[[7, 7]], y=[[7, 8]], z=[[8]]))
        (matrix.sum() + 4 * apart.sum()).backward()
        assert pending.apply().num_applied == 2
        assert weights_of(pending.engine, "a", 7, 8) == [[-2.5], [-4.5]]
        assert pending.engine.tables["a"].num_update_calls == 1

    def test_several_lookups_are_one_step(self):
        pending = self.small()
        for _ in range(3):
            read(pending, lists(x=[[1]], y=[[]]))[0].sum().backward()
        assert pending.num_lookups == 3
        pending.apply()
        assert weights_of(pending.engine, "a", 1) == [[-3.0]]
        assert pending.engine.tables["a"].num_update_calls == 1

    def test_a_later_lookup_may_come_before_an_earlier_step(self):
        pending = self.small()
        first, second = (read(pending, lists(x=[[n]], y=[[1]]))[0] for n in (1, 2))
        for output in (first, second):
            output.sum().backward()
            pending.apply()
        assert weights_of(pending.engine, "b", 1) == [[-2.0]]

    def test_ids_may_be_overwritten_after_the_lookup(self):
        pending = self.small([X, BagFeature("y", "b", "rows")])
        ids = lists(x=[[1]], y=[[2]])
        outputs = read(pending, ids)
        for ragged in ids.values():
            ragged.values.fill_(99)
        loss_of([output + 1 for output in outputs]).backward()
        pending.apply()
        tables = pending.engine.tables.values()
        assert [exported(table).keys.tolist() for table in tables] == [[1], [2]]

    def test_gradients_may_be_overwritten_after_backward(self):
        pending, memory = self.small(), torch.full((1, 2), 3.0)
        read(pending, lists(x=[[1]], y=[[2]]))[0].backward(memory)
        memory.fill_(99.0)
        pending.scale(1.0)  # so that the step sums the queue anew
        pending.apply()
        assert weights_of(pending.engine, "a", 1) == [[-3.0]]

    def test_dense_columns_get_gradients_and_train_nothing_else(self):
        pending, dense = self.small(), torch.zeros(1, 2, requires_grad=True)
        output = read(pending, lists(x=[[1]], y=[[2]]), dense=dense)[0]
        (output * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
        assert dense.grad.tolist() == [[3.0, 4.0]]
        assert pending.norm == pytest.approx(5**0.5)
        pending.apply()
        assert weights_of(pending.engine, "b", 2) == [[-2.0]]

    def test_an_output_without_gradient_trains_nothing(self):
        pending = self.small([X, BagFeature("y", "b", "rows"), BagFeature("z", "b", "rows")])
        ids = lists(x=[[1]], y=[[2]], z=[[3]])
        read(pending, ids)[1].sum().backward()
        pending.apply()
        tables = pending.engine.tables.values()
        assert [exported(table).keys.tolist() for table in tables] == [[], [2]]
        read(pending, ids)[0].sum().backward()
        pending.apply()
        assert [len(table) for table in tables] == [1, 1]

    def test_a_table_without_ids_makes_no_step(self):
        pending = self.small()
        read(pending, lists(x=[[1]], y=[[]]))[0].sum().backward()
        pending.apply()
        assert [t.num_update_calls for t in pending.engine.tables.values()] == [1, 0]

    def test_each_segment_has_its_rate(self):
        segments = [Segment(1, SGD(9.0), Zeros()), Segment(1, SGD(9.0), Zeros())]
        configs = [TableConfig(name, segments) for name in "ab"]
        pending = PendingGradients(self.build(configs, [X, Y]))
        for rates in ([1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 1.0]):
            read(pending, lists(x=[[1]], y=[[1]]))[0].sum().backward()
            pending.apply(rates)
        assert weights_of(pending.engine, "a", 1) == [[-1.0, -2.0]]
        assert weights_of(pending.engine, "b", 1) == [[-3.0, -5.0]]

    def test_a_step_counts_over_all_tables(self):
        pending = self.small(admission=MinCount(1))
        counts = []
        for y in ([[1]], [[1, 2]]):
            read(pending, lists(x=[[1]], y=y))[0].sum().backward()
            applied = pending.apply()
            names = ("num_applied", "num_inserted", "num_refused", "num_skipped")
            counts.append([getattr(applied, name) for name in names])
        assert counts == [[0, 0, 2, 0], [2, 2, 1, 0]]

    def test_an_id_is_trained_once_it_is_admitted(self):
        pending = self.small(admission=MinCount(2))
        for expected in (0.0, 0.0, -1.0):
            read(pending, lists(x=[[1]], y=[[]]))[0].sum().backward()
            pending.apply()
            assert weights_of(pending.engine, "a", 1) == [[expected]]


class NormsAndTimes(EngineCase):
    """Norms, gradients that are not finite, and times."""

    def test_the_norm_is_that_of_the_summed_gradients_of_all_tables(self):
        engine = self.small().engine
        _, looked = engine.lookup(lists(x=[[1, 1, 1]], y=[[2, 2, 2, 2]]), None, None, "zeros")
        summed = engine.sum([(looked, Gradients(torch.ones(1, 2), {}))])
        assert (summed.norm.shape, float(summed.norm)) == ((), 5.0)
        assert (summed.norm_of("a"), summed.norm_of("b")) == (3.0, 4.0)

    def test_a_sum_without_keys_has_no_norm(self):
        engine = self.small().engine
        _, looked = engine.lookup(lists(x=[[]], y=[[]]), None, None, "zeros")
        summed = engine.sum([(looked, Gradients(torch.ones(1, 2), {}))])
        assert (float(summed.norm), summed.norm_of("a")) == (0.0, 0.0)

    def test_a_factor_on_the_anchor_scales_all_tables(self):
        pending = self.small([X, BagFeature("y", "b", "rows")])
        matrix, apart = read(pending, lists(x=[[1]], y=[[2]]))
        (3 * matrix.sum() + 4 * apart.sum()).backward()
        assert pending.anchor.grad.tolist() == [5.0]
        pending.anchor.grad.mul_(0.5)
        pending.apply()
        assert weights_of(pending.engine, "a", 1) == [[-1.5]]
        assert weights_of(pending.engine, "b", 2) == [[-2.0]]

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_a_table_that_refuses_keeps_all_tables_from_a_step(self, value):
        pending = self.small()
        output = read(pending, lists(x=[[1]], y=[[2]]))[0]
        (output * torch.tensor([[1.0, value]])).sum().backward()
        text = rf"expected finite gradients, got norm {value} \(table 'b'\); call zero_grad\(\)"
        with pytest.raises(ValueError, match=text):
            pending.apply()
        assert [len(table) for table in pending.engine.tables.values()] == [0, 0]
        assert pending.num_lookups == 1

    @pytest.mark.parametrize(
        ("policy", "expected"),
        [({"non_finite": "skip"}, 0.0), ({"non_finite": "clip", "clip_value": 2.0}, -2.0)],
    )
    def test_a_table_may_skip_or_clip_what_is_not_finite(self, policy, expected):
        pending = self.small(**policy)
        output = read(pending, lists(x=[[1]], y=[[2]]))[0]
        (output * torch.tensor([[1.0, math.inf]])).sum().backward()
        pending.apply()
        assert weights_of(pending.engine, "a", 1) == [[-1.0]]
        assert weights_of(pending.engine, "b", 2) == [[expected]]

    def test_the_time_of_a_step_is_that_of_the_clock_or_the_one_given(self):
        pending = self.small()
        for now in (None, NOW - 50):
            read(pending, lists(x=[[now or 1]], y=[[]]))[0].sum().backward()
            pending.apply(now=now)
        times = exported(pending.engine.tables["a"]).times
        assert sorted(times.tolist()) == [NOW - 50, NOW]

    def test_a_step_keeps_a_row_from_expiring(self):
        clock = [NOW]
        configs = [TableConfig("a", Segment(1, SGD(1.0), Zeros()), expiry=Expiry(1))]
        pending = PendingGradients(self.build(configs, [X], lambda: clock[0]))
        for x in ([1, 2], [2]):
            read(pending, lists(x=[x]))[0].sum().backward()
            pending.apply()
            clock[0] += 2 * 86_400
        pending.engine.tables["a"].evict()
        assert exported(pending.engine.tables["a"]).keys.tolist() == [2]


class Refusals(EngineCase):
    """What is refused."""

    @pytest.mark.parametrize(
        ("ids", "error", "text"),
        [
            (None, TypeError, "expected ids as a mapping from features to Ragged, got NoneType"),
            ({}, ValueError, "expected ids of every feature, got none of x, y"),
            ({"x": [[1]]}, ValueError, "expected ids of every feature, got none of y"),
            ({"x": [[1]], "y": torch.ones(1)}, TypeError, "ids of 'y' as a Ragged, got Tensor"),
            (
                {"x": [[1]], "y": Ragged.from_lists([[1]], dtype=torch.int16)},
                TypeError,
                r"expected ids of 'y' of dtype int64 or int32, got int16; cast with \.long\(\)",
            ),
            (
                {"x": [[1]], "y": [[1], [2]]},
                ValueError,
                r"expected 1 samples of every feature, as 'x' has, got 2 \(feature 'y'\)",
            ),
            (
                {"x": [[1]], "y": Ragged.from_lists([[1]], device="meta")},
                ValueError,
                "expected ids of 'y' on device cpu, got meta",
            ),
        ],
    )
    def test_bad_ids(self, ids, error, text):
        if isinstance(ids, dict):
            ids = {k: Ragged.from_lists(v) if isinstance(v, list) else v for k, v in ids.items()}
        with pytest.raises(error, match=rf"^\[Features.lookup\] .*{text}"):
            self.small().engine.lookup(ids, None, None, "initial")

    @pytest.mark.parametrize("kind", ["sum", "rows"])
    @pytest.mark.parametrize("splits", [[0, 2], [0, 2, 1], [1, 1]])
    def test_splits_of_other_ids(self, kind, splits):
        engine = self.small([BagFeature("x", "a", kind)]).engine
        bad = Ragged._unchecked(keys(1), keys(*splits))
        with pytest.raises(ValueError, match="row_splits"):
            engine.lookup({"x": bad}, None, None, "initial")

    @pytest.mark.parametrize(
        ("dense", "error", "text"),
        [
            ([[1.0]], TypeError, "expected dense as a float32 tensor on the CPU, got list"),
            (torch.zeros(1, 2).double(), TypeError, "got torch.float64 on cpu"),
            (torch.zeros(2, 2), ValueError, r"\(1, columns\), a row for each sample, got \(2, 2\)"),
        ],
    )
    def test_bad_dense_columns(self, dense, error, text):
        with pytest.raises(error, match=text):
            self.small().engine.lookup(lists(x=[[1]], y=[[2]]), None, dense, "initial")

    def test_gradients_that_one_table_refuses_step_no_table(self):
        skipping = TableConfig("a", Segment(1, SGD(1.0)), non_finite="skip")
        engine = self.build([skipping, TableConfig("b", Segment(1, SGD(1.0)))], [X, Y])
        _, looked = engine.lookup(lists(x=[[1], [2]], y=[[3], [4]]), None, None, "initial")
        gradients = torch.tensor([[1.0, 1.0], [1.0, math.inf]])
        summed = engine.sum([(looked, Gradients(gradients, {}))])
        with pytest.raises(ValueError, match=r"expected finite gradients, got .*'b'"):
            engine.step(summed, [1.0, 1.0], [NOW, NOW])
        assert [len(table) for table in engine.tables.values()] == [0, 0]

    def test_weights_of_ids(self):
        with pytest.raises(NotImplementedError, match="expected no weights of ids, got those of x"):
            self.small().engine.lookup(lists(x=[[1]], y=[[2]]), {"x": None}, None, "initial")

    def test_calls_after_a_table_was_closed(self):
        engine, ids = self.small().engine, lists(x=[[1]], y=[[2]])
        _, looked = engine.lookup(ids, None, None, "initial")
        items = [(looked, Gradients(torch.ones(1, 2), {}))]
        summed = engine.sum(items)
        engine.tables["b"].close()
        for call in (
            lambda: engine.lookup(ids, None, None, "initial"),
            lambda: engine.sum(items),
            lambda: engine.step(summed, [1.0, 1.0], [NOW, NOW]),
            lambda: engine.check_open("[here]"),
        ):
            with pytest.raises(FailedPreconditionError, match=r"got a closed one \(table 'b'\)$"):
                call()

    def test_training_of_a_serving_table(self):
        config = TableConfig("a", Segment(2), kind="serving")
        pending = PendingGradients(self.build([config], [X]))
        output = read(pending, lists(x=[[7]]))[0]
        assert output.tolist() == [[0.0, 0.0]]
        output.sum().backward()
        with pytest.raises(FailedPreconditionError, match="expected a training table, got a serv"):
            pending.apply()

    def test_tables_and_features_that_do_not_fit(self):
        a, serving = TableConfig("a", Segment(1)), TableConfig("s", Segment(1), kind="serving")
        for configs, features, text in (
            ([], [X], "expected at least one table, got none"),
            ([a], [], "expected at least one feature, got none"),
            ([a, a], [X], "expected tables with different names, got several of a"),
            ([a], [X, X], "expected features with different names, got several of x"),
            ([a], [Y], r"expected a table in a, got 'b' \(feature 'y'\)"),
            ([a, serving], [X], r"of one kind, got training .* and serving \(table 's'\)"),
        ):
            with pytest.raises(ValueError, match=rf"^\[Features\] .*{text}"):
                self.build(configs, features)


class EngineSuite(Lookups, Steps, NormsAndTimes, Refusals):
    """All facts of an engine."""
