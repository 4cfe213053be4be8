"""Groups of tables: each call does what the calls on every table would do."""

import pytest
import torch

from monolith.cluster.table_group import TableGroup
from monolith.errors import FailedPreconditionError
from monolith.ops import Ragged
from monolith.table import MinCount, OneBit, Segment, Table, TableConfig, Uniform, Zeros
from monolith.table.disk import restore_tables, save_tables
from monolith.table.optimizers import SGD, Adagrad, PolynomialDecay
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from tests.suites.table_base import assert_same_rows

NOW = 1_700_000_000
KINDS = pytest.mark.parametrize("kind", [Table, ReferenceTable])


def configs():
    """Tables of different dims and rules."""
    return [
        TableConfig("a", Segment(1, SGD(0.5))),
        TableConfig("b", [Segment(2, Adagrad(0.5), Uniform(-1, 1)), Segment(1, SGD(0.1))], seed=3),
        TableConfig("c", Segment(3, SGD(1.0), Uniform(-1, 1), view=OneBit())),
        TableConfig("d", Segment(2, Adagrad(PolynomialDecay(0.1, 10, 1.0))), admission=MinCount(2)),
        TableConfig("e", Segment(5, SGD(0.5), precision="fp16")),
    ]


def scheduled(name, rate):
    """A table of zeros whose rate is what a schedule says."""
    return TableConfig(name, Segment(1, SGD(lambda step: rate), Zeros()))


def make_group(kind=Table, given=None):
    return TableGroup([kind(config, clock=lambda: NOW) for config in given or configs()])


def random_keys(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-50, 50, (sum(lengths),), generator=generator)
    return Ragged.from_lengths(values, torch.tensor(lengths))


def random_rows(group, keys, seed=0):
    generator = torch.Generator().manual_seed(seed)
    dims = torch.tensor([table.dim for table in group.tables.values()])
    return torch.randn(int((keys.lengths * dims).sum()), generator=generator)


def split(group, keys, flat):
    """Keys and rows of each table, cut by hand."""
    parts, at, start = {}, 0, 0
    for (name, table), n in zip(group.tables.items(), keys.lengths.tolist(), strict=True):
        rows = flat[start : start + n * table.dim].view(n, table.dim)
        parts[name] = (keys.values[at : at + n], rows)
        at, start = at + n, start + n * table.dim
    return parts


def scalar_group(*names, rate=1.0, kind=Table):
    return make_group(kind, [TableConfig(name, Segment(1, SGD(rate), Zeros())) for name in names])


class TestCalls:
    @KINDS
    @pytest.mark.parametrize("num_threads", [1, 3])
    @pytest.mark.parametrize("lengths", [[40, 0, 60, 30, 9], [9, 6000, 40, 5000, 0]])
    def test_each_call_equals_calls_on_single_reference_tables(self, kind, lengths, num_threads):
        group, alone = make_group(kind), make_group(ReferenceTable).tables
        options = {"num_threads": num_threads}
        for step in range(3):
            keys = random_keys(lengths, step)
            rows = random_rows(group, keys, step)
            parts = split(group, keys, rows)
            group.assign_add(keys, rows, **options)
            group.apply_gradients(keys, rows, step=step, **options)
            group.assign(keys, rows, **options)
            group.apply_gradients(keys, rows * 2, step=step, **options)
            found = group.unpack(keys, group.lookup(keys, step=step, **options))
            for name, (part, values) in parts.items():
                table = alone[name]
                if len(part):
                    table.assign_add(part, values)
                    table.apply_gradients(part, values, step=step)
                    table.assign(part, values)
                    table.apply_gradients(part, values * 2, step=step)
                assert torch.equal(found[name], table.lookup(part, step=step))
        for name, table in alone.items():
            assert_same_rows(group.tables[name], table)

    @KINDS
    def test_counts_are_sums_over_the_tables(self, kind):
        group = make_group(kind, [*configs()[:2], configs()[3]])
        keys = group.keys({"a": torch.tensor([1, 1, 2]), "d": torch.tensor([1, 2, 2])})
        applied = group.apply_gradients(keys, torch.ones(9))
        assert applied == (2, 2, 2, 0)

    @KINDS
    def test_gradients_may_have_a_graph(self, kind):
        group = scalar_group("a", "b", kind=kind)
        keys = group.keys({"b": torch.tensor([1])})
        group.apply_gradients(keys, torch.ones(1, requires_grad=True) * 2)
        assert group.lookup(keys).tolist() == [-2]

    @KINDS
    def test_missing_keys_read_as_zeros_if_asked(self, kind):
        group = make_group(kind)
        keys = group.keys({"b": torch.tensor([7])})
        assert group.lookup(keys).count_nonzero() > 0
        assert group.lookup(keys, missing="zeros").tolist() == [0, 0, 0]

    def test_a_table_without_keys_counts_no_update(self):
        group = scalar_group("a", "b")
        group.apply_gradients(group.keys({"b": torch.tensor([1])}), torch.ones(1))
        assert [table.num_update_calls for table in group.tables.values()] == [0, 1]

    def test_tables_come_in_the_order_of_their_names(self):
        group = scalar_group("b", "c", "a")
        assert list(group.tables) == ["a", "b", "c"]

    def test_a_recorded_table_notes_the_calls_of_its_group(self):
        record = Record()
        table = Table(TableConfig("a", Segment(1, SGD(1.0))), clock=lambda: NOW, record=record)
        group = TableGroup([table, Table(TableConfig("b", Segment(1)))])
        group.apply_gradients(group.keys({"a": torch.tensor([1, 2])}), torch.ones(2))
        assert len(record) == 2

    @KINDS
    def test_a_time_far_ahead_is_counted_in_every_table(self, kind):
        group = scalar_group("a", "b", kind=kind)
        group.assign(group.keys({"a": torch.tensor([1])}), torch.ones(1), now=NOW + 7200)
        found = [table.stats()["num_clamped_times"] for table in group.tables.values()]
        assert found == [1, 1]

    def test_a_thousand_tables(self):
        group = scalar_group(*[f"t{i:03}" for i in range(1000)])
        keys = Ragged.from_lengths(torch.arange(3000), torch.full((1000,), 3))
        group.apply_gradients(keys, torch.arange(3000.0))
        assert torch.equal(group.lookup(keys), -torch.arange(3000.0))


class TestRates:
    @KINDS
    def test_rates_are_given_by_name(self, kind):
        group = scalar_group("a", "b", kind=kind)
        keys = group.keys({"a": torch.tensor([1]), "b": torch.tensor([1])})
        group.apply_gradients(keys, torch.ones(2), learning_rates={"b": [0.25]})
        assert group.lookup(keys).tolist() == [-1, -0.25]

    @KINDS
    def test_a_schedule_follows_the_step(self, kind):
        decay = PolynomialDecay(0.0, 10, 1.0)
        group = make_group(kind, [TableConfig("a", Segment(1, SGD(decay), Zeros()))])
        keys = group.keys({"a": torch.tensor([1])})
        group.apply_gradients(keys, torch.ones(1), step=5)
        assert group.lookup(keys).tolist() == [-0.5]

    def test_rates_of_unknown_tables_are_refused(self):
        group = scalar_group("a", "b")
        keys = group.keys({"a": torch.tensor([1])})
        text = (
            r"\[TableGroup.apply_gradients\] expected learning rates of the tables, got some of z; "
            "the tables are a, b"
        )
        with pytest.raises(ValueError, match=text):
            group.apply_gradients(keys, torch.ones(1), learning_rates={"z": [1.0]})

    @pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0])
    def test_rates_of_a_schedule_are_refused_as_a_table_refuses_them(self, rate):
        given = [TableConfig("a", Segment(1, SGD(1.0))), scheduled("b", rate)]
        group = make_group(Table, given)
        text = rf"\[Table.apply_gradients\] expected learning rates in .*got {rate} \(table 'b'\)"
        for update in (
            lambda: group.tables["b"].apply_gradients(torch.tensor([1]), torch.ones(1, 1)),
            lambda: group.apply_gradients(Ragged.from_lists([[1], [1]]), torch.ones(2)),
        ):
            with pytest.raises(ValueError, match=text):
                update()
        assert [len(table) for table in group.tables.values()] == [0, 0]

    def test_a_schedule_is_not_asked_for_a_good_rate_where_one_is_given(self):
        group = make_group(Table, [scheduled("a", -1.0), scheduled("b", 0.5)])
        keys = Ragged.from_lists([[1], [1]])
        group.apply_gradients(keys, torch.ones(2), learning_rates={"a": [2.0]})
        assert group.lookup(keys).tolist() == [-2.0, -0.5]

    def test_rates_of_all_tables_in_one_list_are_refused(self):
        group = make_group()
        keys = group.keys({"a": torch.tensor([1])})
        text = r"apply_gradients\] expected learning_rates as a mapping by table name, got list"
        with pytest.raises(TypeError, match=text):
            group.apply_gradients(keys, torch.ones(1), learning_rates=[[1.0]])

    def test_rates_of_a_wrong_number_are_refused_with_their_table(self):
        group = scalar_group("a", "b")
        keys = group.keys({"a": torch.tensor([1])})
        with pytest.raises(ValueError, match=r"expected 1 learning rate\(s\).*table 'b'"):
            group.apply_gradients(keys, torch.ones(1), learning_rates={"b": [1.0, 2.0]})


class TestRefusals:
    @KINDS
    def test_a_gradient_that_is_not_finite_changes_no_table(self, kind):
        group = scalar_group("a", "b", kind=kind)
        keys = group.keys({"a": torch.tensor([1]), "b": torch.tensor([1, 2])})
        text = r"got nan at row 1, column 0 \(table 'b'\)"
        with pytest.raises(ValueError, match=text):
            group.apply_gradients(keys, torch.tensor([1.0, 1.0, float("nan")]))
        assert [len(table) for table in group.tables.values()] == [0, 0]

    @pytest.mark.parametrize(
        ("make", "kind", "text"),
        [
            (list, ValueError, r"\[TableGroup\] expected at least one table, got none"),
            (lambda: [3], TypeError, r"\[TableGroup\] expected tables as Table, got int"),
            (
                lambda: [Table(TableConfig("a", Segment(1))) for _ in range(2)],
                ValueError,
                r"\[TableGroup\] expected different names, got several of a",
            ),
            (
                lambda: [
                    Table(TableConfig("a", Segment(1))),
                    Table(TableConfig("b", Segment(1), kind="serving")),
                ],
                ValueError,
                r"expected tables of one kind, got training \(table 'a'\) and serving",
            ),
            (
                lambda: [Table(TableConfig("a", Segment(1), kind="serving", skip_zero=True))],
                ValueError,
                r"expected tables without skip_zero, got one with it \(table 'a'\)",
            ),
        ],
    )
    def test_tables_that_do_not_go_together(self, make, kind, text):
        with pytest.raises(kind, match=text):
            TableGroup(make())

    def test_a_closed_table_at_construction(self):
        table = Table(TableConfig("a", Segment(1)))
        table.close()
        with pytest.raises(FailedPreconditionError):
            TableGroup([table])

    def test_a_table_that_was_closed_later(self):
        group = scalar_group("a", "b")
        keys = group.keys({"a": torch.tensor([1])})
        group.tables["b"].close()
        text = r"\[TableGroup.lookup\] expected open tables, got a closed one \(table 'b'\)"
        with pytest.raises(FailedPreconditionError, match=text):
            group.lookup(keys)
        assert group._storage is None  # which would keep the table's memory

    @pytest.mark.parametrize(
        ("keys", "kind", "text"),
        [
            (torch.tensor([1]), TypeError, "expected keys as a Ragged, got Tensor; make one with"),
            (
                Ragged.from_lists([[1], [2], [3]]),
                ValueError,
                "expected keys with 2 rows, one per table, got 3",
            ),
            (
                Ragged.from_lists([[1.0], [2.0]], dtype=torch.float32),
                TypeError,
                "expected keys of dtype int64, got float32",
            ),
        ],
    )
    def test_wrong_keys(self, keys, kind, text):
        with pytest.raises(kind, match=rf"\[TableGroup.lookup\] {text}"):
            scalar_group("a", "b").lookup(keys)

    def test_rows_of_a_wrong_number(self):
        group = make_group()
        keys = group.keys({"b": torch.tensor([1, 2])})
        text = r"\[TableGroup.assign\] expected values with 6 numbers, the rows of all keys, got 5"
        with pytest.raises(ValueError, match=text):
            group.assign(keys, torch.ones(5))

    def test_names_that_the_group_does_not_have(self):
        text = r"\[TableGroup.keys\] expected names of the tables, got z; the group has a, b"
        with pytest.raises(ValueError, match=text):
            scalar_group("a", "b").keys({"z": torch.tensor([1])})

    def test_row_splits_that_were_changed_in_place(self):
        group = scalar_group("a", "b")
        keys = group.keys({"a": torch.tensor([1]), "b": torch.tensor([2])})
        keys.row_splits[1] = 5
        with pytest.raises(ValueError, match=r"expected row_splits from 0 to 2, ascending"):
            group._storage.lookup(keys, True, 0, 1)

    def test_memory_that_runs_out_names_the_call(self):
        group = scalar_group("a", "b")
        group.tables["b"]._core.set_memory_limit(1)
        keys = group.keys({"b": torch.arange(1000)})
        with pytest.raises(MemoryError, match=r"\[TableGroup.assign\]"):
            group.assign(keys, torch.ones(1000))


class TestReinitialize:
    """Table vector 17 of the reference system."""

    @KINDS
    def test_status_of_known_and_unknown_tables(self, kind):
        sizes = {"slot0": 1, "not_used": 2, "slot1": 2, "slot2": 2}
        given = [TableConfig(name, Segment(dim, SGD(1.0), Zeros())) for name, dim in sizes.items()]
        group = make_group(kind, given)
        ids = {"slot0": [0], "slot1": [1], "slot2": [2, 3]}
        keys = group.keys({name: torch.tensor(values) for name, values in ids.items()})
        group.assign_add(keys, torch.tensor([1.0, 2, 2, 4, 4, 8, 8]))
        assert group.reinitialize("slot2", torch.tensor([1, 2, 3])).tolist() == [0, 1, 1]
        rows = group.tables["slot2"].lookup(torch.tensor([1, 2, 3]))
        assert rows.count_nonzero() == 0
        assert group.reinitialize("slot3", torch.tensor([1, 2, 3])).tolist() == [-1, -1, -1]


def test_vector_18_a_save_restores_the_tables_that_both_have(tmp_path):
    dims = {"slot0": 1, "slot1": 2, "slot2": 2, "slot3": 2}
    given = {n: TableConfig(n, Segment(dim, SGD(1.0), Zeros())) for n, dim in dims.items()}
    saved = make_group(Table, [given[n] for n in ("slot0", "slot1", "slot2")])
    ids = saved.keys({n: torch.tensor([4]) for n in saved.tables})
    saved.assign(ids, torch.tensor([1.0, 2, 2, 4, 4]))
    save_tables(list(saved.tables.values()), tmp_path)
    group = make_group(Table, [given[n] for n in ("slot0", "slot2", "slot3")])
    missing = restore_tables(list(group.tables.values()), tmp_path, allow_missing=True)
    assert missing == ["slot3"]
    ids = group.keys({n: torch.tensor([4]) for n in group.tables})
    assert group.lookup(ids).tolist() == [1, 4, 4, 0, 0]
