"""`Features` under torch.compile and torch.export: the same bits as without."""

from functools import partial

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.features import BagFeature
from monolith.nn import Feature, Features
from monolith.ops import Ragged
from monolith.optim import Optimizer
from monolith.table import Segment, Table, TableConfig
from monolith.table.optimizers import SGD, Adagrad
from tests.features.feature_cases import FeatureBags
from tests.suites.table_base import NOW, assert_same_rows

pytestmark = pytest.mark.thorough

IDS = {"user": Ragged.from_lists([[7], [8, 7]])}


class Model(torch.nn.Module):
    """Rows of every kind, read twice, dense columns behind them, and a dense part."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        pooled = Feature("a", dim=2, bias=True, optimizer=Adagrad(0.1))
        kept = Feature("b", dim=2, combiner="rows", optimizer=SGD(0.1))
        first = Feature("c", shares="a", combiner="first", max_length=2)
        make_table = partial(Table, clock=lambda: NOW)
        self.features = Features([pooled, kept, first], make_table=make_table)
        self.linear = torch.nn.Linear(12, 1)

    def forward(self, ids, dense):
        one, two = self.features(ids, dense=dense), self.features(ids)
        apart = one["b"].square().sum() + (one["c"] * two["c"]).sum() + two.bias("a").sum()
        return self.linear(one.joined).sum() + apart


def batch(seed):
    random, ids = torch.Generator().manual_seed(seed), {}
    for name in "abc":
        lengths = torch.randint(0, 4, (5 + seed,), generator=random)
        values = torch.randint(-9, 9, (int(lengths.sum()),), generator=random)
        ids[name] = Ragged.from_lengths(values, lengths)
    return ids, torch.rand(5 + seed, 3, generator=random)


def train(model, run):
    optimizer = Optimizer(model, dense=torch.optim.SGD(model.linear.parameters(), lr=0.1))
    for seed in range(4):
        optimizer.zero_grad()
        run(*batch(seed)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def compiled(module):
    torch._dynamo.reset()
    return torch.compile(module, fullgraph=True, backend="aot_eager")


def test_a_compiled_model_trains_the_same_rows():
    plain, model = Model(), Model()
    train(plain, plain)
    train(model, compiled(model))
    for name in ("a", "b"):
        assert_same_rows(plain.features.tables[name], model.features.tables[name])
    assert torch.equal(plain.linear.weight, model.linear.weight)


def test_a_compiled_model_in_eval_reads_zeros_and_queues_nothing():
    features = Features([Feature("user", dim=2)]).eval()
    joined = compiled(lambda: features(IDS).joined)()
    assert not joined.requires_grad
    assert joined.tolist() == [[0, 0], [0, 0]]


def test_equal_lookups_in_a_graph_are_queued_each():
    features = Features([Feature("user", dim=2)])
    compiled(lambda: features(IDS).joined.sum() + features(IDS).joined.sum())().backward()
    assert features.queues[0].queue.num_lookups == 2


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_keeps_the_lookups_as_ops(strict):
    model = Model()
    train(model, model).eval()
    program = torch.export.export(model, batch(1), strict=strict)
    calls = [node for node in program.graph.nodes if "monolith.lookup" in str(node.target)]
    assert len(calls) == 2
    torch.testing.assert_close(program.module()(*batch(1)), model(*batch(1)))


@pytest.mark.parametrize("strict", [True, False])
def test_backward_of_an_exported_program_queues_the_gradients_of_its_lookups(strict):
    model = Model()
    program = torch.export.export(model, batch(1), strict=strict).module()
    assert model.features.pending.num_lookups == 0
    program(*batch(1)).backward()
    assert model.features.pending.num_lookups == 2


def test_features_without_a_module_compile():
    table = Table(TableConfig("user", Segment(1, SGD(1.0))))
    bags = FeatureBags([table], [BagFeature("user", "user")])
    compiled(lambda: bags.lookup(IDS))().sum().backward()
    assert (bags.queue.num_lookups, bags.queue.norm) == (1, 5**0.5)


def test_features_that_are_not_trained_compile():
    features = Features([Feature("user", dim=2)])
    joined = compiled(lambda: features.read(IDS, is_training=False).joined)()
    assert not joined.requires_grad


def test_missing_ids_are_refused_by_name_in_a_graph():
    features = Features([Feature("user", dim=2), Feature("item", dim=2)])
    with pytest.raises(RuntimeError, match=r"expected ids of item, got those of user"):
        compiled(lambda: features(IDS).joined)()


def test_a_graph_whose_features_are_gone_is_refused():
    ragged = IDS["user"]
    arguments = ([ragged.values], [ragged.row_splits], None, 1 << 40, "sum", "initial", None)
    text = r"^\[monolith::lookup\] .* module of table handle 1099511627776 to be alive"
    with pytest.raises(FailedPreconditionError, match=text):
        torch.ops.monolith.lookup(torch.zeros(1), *arguments)


def test_the_op_passes_the_checks_of_torch():
    features = Features([Feature("user", dim=2), Feature("item", dim=2, combiner="rows")])
    held, ragged = features.queues[0], IDS["user"]
    ids, splits = [ragged.values] * 2, [ragged.row_splits] * 2
    arguments = (held.anchor, ids, splits, None, held.queue.handle, "sum", "initial", None)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.monolith.lookup, arguments, test_utils=tests)
