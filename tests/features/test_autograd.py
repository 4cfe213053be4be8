import copy

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.nn import Embedding, EmbeddingBag
from monolith.ops import Ragged
from monolith.table import Segment, Table, TableConfig, Zeros
from monolith.table.reference import ReferenceTable
from monolith.table.replay import Record
from tests.nn.cases import IDS, OFFSETS, Model, make_bag, rows, train
from tests.suites.table_base import assert_equal_rows, assert_same_bits, assert_same_rows, exported

# Inductor imports a module of torch that warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")

CASES = [{}, {"mode": "sum", "padding_idx": 3}, {"mode": "max"}, {"mode": "sqrtn"}]
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.dist)]  # it runs a compiler


@pytest.fixture(autouse=True)
def _forget_graphs():
    torch._dynamo.reset()


def run_both(backend, options, **model_options):
    """Ten steps of equal models, eager and compiled; the models and the weights' gradients."""
    torch.manual_seed(0)
    eager = Model(**options, **model_options)
    compiled = copy.deepcopy(eager)
    found = train(eager, eager)
    run = torch.compile(compiled, fullgraph=True, backend=backend)
    return eager, compiled, found, train(compiled, run)


@pytest.mark.thorough
@pytest.mark.parametrize("options", CASES)
def test_ten_compiled_steps_leave_the_bits_of_eager_ones(options):
    eager, compiled, expected, found = run_both("aot_eager", options)
    assert_same_rows(eager.bag.table, compiled.bag.table)
    assert_same_rows(eager.embedding.table, compiled.embedding.table)
    for one, two in zip(expected, found, strict=True):
        assert_same_bits(one, two)


@pytest.mark.dist
@pytest.mark.parametrize("options", CASES)
def test_inductor_leaves_the_bits_of_an_element_wise_model(options):
    eager, compiled, _, _ = run_both("inductor", options, with_linear=False)
    assert_same_rows(eager.bag.table, compiled.bag.table)
    assert_same_rows(eager.embedding.table, compiled.embedding.table)


@pytest.mark.dist
def test_inductor_is_close_on_a_model_with_a_dense_part():
    eager, compiled, _, _ = run_both("inductor", {})
    one, two = exported(eager.bag.table), exported(compiled.bag.table)
    assert torch.equal(one.keys, two.keys)
    for name in one.columns:
        torch.testing.assert_close(one.columns[name], two.columns[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_lookups_in_a_graph_are_queued_one_by_one(backend):
    bag = make_bag(initializer=Zeros())

    @torch.compile(fullgraph=True, backend=backend)
    def run(ids):
        return (bag(ids) + bag(ids)).sum()

    run(torch.tensor([[1]])).backward()
    assert bag.queue.num_lookups == 2
    bag.step()
    assert rows(bag) == {1: [-2.0, -2.0]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_serves_other_batches_and_sees_every_step(backend):
    bag = make_bag(initializer=Zeros())
    run = torch.compile(bag, fullgraph=True, backend=backend, dynamic=True)
    for n in (2, 5, 3):
        run(torch.arange(2 * n).reshape(n, 2)).sum().backward()
        bag.step()
    assert run(torch.tensor([[0, 9], [4, 1]])).tolist() == [[-4.0, -4.0], [-5.0, -5.0]]


def test_a_ragged_may_enter_a_graph():
    bag = make_bag()
    ragged = Ragged.from_lists([[7, -3, 7], [], [1 << 62]])
    run = torch.compile(bag, fullgraph=True, backend="aot_eager")
    assert_same_bits(run(ragged), bag(IDS, OFFSETS))


def test_a_compiled_model_in_eval_reads_zeros_and_queues_nothing():
    bag = make_bag().eval()
    run = torch.compile(bag, fullgraph=True, backend="aot_eager")
    pooled = run(IDS, OFFSETS)
    assert not pooled.requires_grad
    assert pooled.count_nonzero() == 0


def test_two_models_of_one_class_keep_their_tables():
    bags = [make_bag(initializer=Zeros(), name=name) for name in ("user", "item")]
    for i, bag in enumerate(bags):
        torch.compile(bag, fullgraph=True, backend="aot_eager")(
            torch.tensor([[i]])
        ).sum().backward()
        bag.step()
    assert [list(rows(bag)) for bag in bags] == [[0], [1]]


def test_a_wrong_offset_is_refused_when_a_graph_runs():
    run = torch.compile(make_bag(), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="ascending row_splits, got 3 and then 2 at 2"):
        run(IDS, torch.tensor([0, 3, 2]))


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_keeps_the_lookup_as_an_op(strict):
    model = Model().eval()
    train(model.train(), model, num_steps=2)
    arguments = (torch.arange(12), torch.tensor([0, 3, 3, 7]))
    program = torch.export.export(model.eval(), arguments, strict=strict)
    calls = [node for node in program.graph.nodes if "monolith.lookup." in str(node.target)]
    assert len(calls) == 4
    torch.testing.assert_close(program.module()(*arguments), model(*arguments))


def test_a_graph_whose_module_is_gone_is_refused():
    bag = make_bag()
    arguments = (bag.anchor, [IDS], [torch.tensor([0, 4])], None, 1 << 40, "sum", "initial", None)
    with pytest.raises(FailedPreconditionError, match="module of table handle 1099511627776 to be"):
        torch.ops.monolith.lookup(*arguments)


def test_the_ops_pass_the_checks_of_torch():
    bag = make_bag()
    splits = torch.tensor([0, 3, 3, 4])
    arguments = (bag.anchor, [IDS], [splits], None, bag.queue.handle, "sum", "initial", None)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.monolith.lookup, arguments, test_utils=tests)


def test_a_table_of_an_embedding_and_a_bag_compiles():
    table = Table(TableConfig("user", Segment(2, initializer=Zeros())))
    bag, embedding = EmbeddingBag(2, table=table, mode="sum"), Embedding(2, table=table)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(ids):
        return bag(ids).sum() + embedding(ids).sum()

    run(torch.tensor([[1, 2]])).backward()
    assert bag.step().num_applied == 2
    torch.testing.assert_close(table.lookup(torch.tensor([1, 2])), torch.full((2, 2), -0.02))


def test_what_steps_applied_replays_into_the_reference_table():
    config = make_bag(4).table.config
    record = Record()
    bag = EmbeddingBag(4, table=Table(config, record=record), mode="mean")
    random = torch.Generator().manual_seed(0)
    for step in range(12):
        for _ in range(1 + step % 3):  # accumulation, and two lookups of the table
            ids = torch.randint(0, 30, (2, 5, 3), generator=random)
            (bag(ids[0]).square().sum() + bag(ids[1]).sum()).backward()
        if step % 4 == 0:
            torch.nn.utils.clip_grad_norm_(bag.parameters(), 0.5)
        bag.step()
    reference = ReferenceTable(config)
    record.replay(reference)
    assert_equal_rows(exported(reference), exported(bag.table))
