import pytest
import torch

from monolith.cluster import LocalServers
from monolith.errors import FailedPreconditionError
from monolith.native_training.tables import DistributedMultiTypeHashTable
from monolith.native_training.tables.merged_table import MergedMultiTypeHashTable
from monolith.native_training.tables.multi_hash_table import MultiHashTable, MultiTypeHashTable
from monolith.native_training.test_utils import generate_test_hash_table_config
from monolith.ops import Ragged
from monolith.table import MinCount, Segment, TableConfig, Zeros
from monolith.table.optimizers import SGD
from tests.suites.table_base import NOW, column, floats, keys

BOTH = pytest.mark.parametrize("kind", [MultiTypeHashTable, MultiHashTable])


def config_of(name, dim=1, rate=1.0, **options):
    return TableConfig(name, Segment(dim, SGD(rate), Zeros()), **options)


@pytest.fixture
def make():
    """(kind, dims or configs by slot) -> table, closed at the end."""
    made = []

    def make(kind, given):
        configs = {n: config_of(n, c) if isinstance(c, int) else c for n, c in given.items()}
        made.append(kind(configs, clock=lambda: NOW))
        return made[-1]

    yield make
    for table in made:
        table.close()


@BOTH
def test_slots_come_back_as_they_were_asked_for(make, kind):
    table = make(kind, {"b": 2, "a": 1, "c": 1})
    pairs = {"b": (keys(7, 8, 7), floats([1, 2], [3, 4], [5, 6])), "a": (keys(7), column(9))}
    assert table.assign(pairs) is table
    rows = table.lookup({"b": keys(8, 7), "a": keys(7)})
    assert {slot: each.tolist() for slot, each in rows.items()} == {
        "b": [[3, 4], [5, 6]],
        "a": [[9]],
    }
    assert list(rows) == ["b", "a"]
    assert [table.size(slot) for slot in "abc"] == [1, 2, 0]
    assert table.get_table_dim_sizes() == [1, 2, 1]


@BOTH
def test_table_vector_21_of_the_reference_system(make, kind):
    table = make(kind, {"slot0": 1, "slot1": 2})
    applied = table.apply_gradients({"slot1": (keys(2, 2), floats([1.1, 3.1], [2.2, 4.2]))})
    assert applied.num_applied == 1
    assert torch.allclose(table.lookup({"slot1": keys(2)})["slot1"], floats([-3.3, -7.3]))


@BOTH
def test_rates_belong_to_names_in_whatever_order_the_slots_are_given(make, kind):
    table = make(kind, {"z": config_of("z", rate=1.0), "a": config_of("a", rate=2.0)})
    table.apply_gradients({slot: (keys(1), column(1)) for slot in "za"})
    assert [table.lookup({slot: keys(1)})[slot].item() for slot in "za"] == [-1.0, -2.0]
    table.apply_gradients({slot: (keys(1), column(1)) for slot in "za"}, learning_rates={"z": [4]})
    assert [table.lookup({slot: keys(1)})[slot].item() for slot in "za"] == [-5.0, -4.0]


@BOTH
def test_a_call_without_slots_does_nothing(make, kind):
    table = make(kind, {"a": 1})
    assert table.lookup({}) == {}
    assert table.assign({}).apply_gradients({}).num_applied == 0


@BOTH
def test_a_write_has_the_time_of_the_call(make, kind):
    table = make(kind, {"a": 1}).assign({"a": (keys(1), column(1))}, now=77)
    assert table.group.tables["a"].lookup_entry(keys(1)).rows.times.tolist() == [77]


@BOTH
@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda t: t.lookup({"c": keys(1)}), r"lookup\] expected slots of the table, got 'c'; it"),
        (lambda t: t.size("c"), r"size\] expected slots of the table, got 'c'; it has a, b"),
        (
            lambda t: t.assign({"a": (keys(1), floats([1, 2]))}),
            r"assign\] expected values of shape \(1, 1\), got \(1, 2\) \(slot 'a'\)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(make, kind, call, text):
    table = make(kind, {"a": 1, "b": 2})
    with pytest.raises(ValueError, match=rf"\[{kind.__name__}\.{text}"):
        call(table)


def test_independent_tables_have_no_reinitialize(make):
    table = make(MultiTypeHashTable, {"a": 1})
    with pytest.raises(NotImplementedError, match=r"reinitialize\] expected a MultiHashTable"):
        table.reinitialize("a", keys(1))


def test_table_vector_17_of_the_reference_system(make):
    table = make(MultiHashTable, {"slot0": 1, "not_used": 2, "slot1": 2, "slot2": 2})
    table.assign_add(
        {
            "slot0": (keys(0), column(1)),
            "slot1": (keys(1), floats([2, 2])),
            "slot2": (keys(2, 3), floats([4, 4], [8, 8])),
        }
    )
    assert table.reinitialize("slot2", keys(1, 2, 3)).tolist() == [0, 1, 1]
    assert table.lookup({"slot2": keys(1, 2, 3)})["slot2"].abs().sum() == 0
    assert table.lookup({"slot1": keys(1)})["slot1"].tolist() == [[2, 2]]
    assert table.reinitialize("slot3", keys(1, 2, 3)).tolist() == [-1, -1, -1]


def test_raw_calls_are_those_by_slot(make):
    table = make(MultiHashTable, {"b": 2, "a": 1})
    batch = Ragged.from_lists([[7, 8, 7], [7]])
    assert table.raw_assign(batch, torch.tensor([1.0, 2, 3, 4, 5])) is table
    assert table.raw_lookup(batch).tolist() == [3, 2, 3, 4, 5]
    table.raw_apply_gradients(batch, torch.ones(5), learning_rates={"b": [2.0]})
    rows = table.lookup({"a": keys(7, 8), "b": keys(7)})
    assert (rows["a"].tolist(), rows["b"].tolist()) == ([[1], [1]], [[2, 3]])


def test_requests_one_after_another_have_rows_one_after_another(make):
    table = make(MultiHashTable, {"a": 1, "b": 2})
    table.raw_assign(Ragged.from_lists([[7, 8], [7]]), torch.tensor([1.0, 2, 3, 4]))
    requests = Ragged.from_lists([[7], [7], [8, 9], [], [], [7]])
    assert table.raw_lookup(requests).tolist() == [1, 3, 4, 2, 0, 3, 4]
    with pytest.raises(ValueError, match="expected keys with 2 rows, one per table, got 3"):
        table.raw_lookup(Ragged.from_lists([[7], [7], [8]]))
    with pytest.raises(TypeError, match="expected keys as a Ragged, got list"):
        table.raw_lookup([[7], [8]])


def test_fused_calls_are_those_of_the_group(make):
    table = make(MultiHashTable, {"a": 1, "b": 2})
    ids, sizes = keys(1, 1), torch.tensor([1, 0, 1, 0])
    table.fused_apply_gradient(ids, sizes, torch.tensor([1.0, 2]), 2)
    assert table.fused_lookup(ids, sizes, 2).embeddings.tolist() == [-3, -3]


def test_tables_by_slot_can_be_merged():
    config = generate_test_hash_table_config(2)
    table = MergedMultiTypeHashTable({"slot1": config, "slot2": config}, MultiTypeHashTable)
    table.assign_add({"slot1": (keys(1), floats([2, 2])), "slot2": (keys(1), floats([4, 4]))})
    both = {"slot1": keys(1), "slot2": keys(1)}
    assert [rows.tolist() for rows in table.lookup(both).values()] == [[[6, 6]], [[6, 6]]]


def test_rows_are_those_of_the_same_tables_over_servers(make):
    given = {"a": config_of("a", rate=0.5), "b": config_of("b", 3, admission=MinCount(2))}
    local = make(MultiHashTable, given)
    draw = torch.Generator().manual_seed(0)
    with LocalServers(3) as servers:
        remote = DistributedMultiTypeHashTable(given, servers, clock=lambda: NOW)
        for _ in range(4):
            ids = {slot: torch.randint(-5, 5, (8,), generator=draw) for slot in given}
            grads = {slot: torch.randn(8, given[slot].dim, generator=draw) for slot in given}
            for table in (local, remote):
                table.apply_gradients({slot: (ids[slot], grads[slot]) for slot in given})
            for slot, rows in local.lookup(ids).items():
                assert torch.equal(rows, remote.lookup(ids)[slot])


def test_a_closed_table_refuses_calls():
    with MultiHashTable({"a": config_of("a")}) as table:
        table.close()
    with pytest.raises(FailedPreconditionError, match=r"expected open tables, got a closed one"):
        table.lookup({"a": keys(1)})
