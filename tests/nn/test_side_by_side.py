"""Show what `EmbeddingBag` and `Features` have in common: a test per line of docs/features.md."""

import copy
import functools
import io
import pickle

import pytest
import torch

from monolith.nn import EmbeddingBag, Feature, Features
from monolith.ops import Ragged
from monolith.optim import Optimizer
from monolith.table import Table
from monolith.table.optimizers import SGD
from tests.docs.pages import first_rows, page
from tests.suites.table_base import NOW, assert_same_rows

IDS = Ragged.from_lists([[1, 2], [], [2]])
SAME = "the same"
ARGUMENTS = {"optimizer": SGD(1.0), "seed": 3}


def clock():
    return NOW


def line(subject, bag, features=SAME):
    """Note the line of the page that a test shows."""

    def note(test):
        test.line = (subject, bag, features)
        return test

    return note


def pair(**options):
    """A bag and features with equal rows, and calls of both that give (3, 2)."""
    bag = EmbeddingBag(2, mode="sum", name="a", clock=clock, **ARGUMENTS, **options)
    make_table = functools.partial(Table, clock=clock)
    features = Features([Feature("a", dim=2, **ARGUMENTS)], make_table=make_table, **options)
    return (bag, lambda: bag(IDS)), (features, lambda: features({"a": IDS})["a"])


def table_of(module):
    return module.table if isinstance(module, EmbeddingBag) else module.tables["a"]


def trained(module, call):
    optimizer = Optimizer(module)
    call().square().sum().backward()
    optimizer.step()
    return module


def assert_equal_tables(modules):
    one, other = map(table_of, modules)
    assert len(one) == 2
    assert_same_rows(one, other)


@line("ids", "a tensor with `offsets`, a matrix, or a `Ragged`", "a `Ragged` for each feature")
def test_ids():
    (bag, bag_call), (features, features_call) = pair()
    assert torch.equal(bag_call(), features_call())
    assert torch.equal(bag(IDS.values, IDS.offsets), bag_call())
    with pytest.raises(TypeError, match="expected ids of 'a' as a Ragged, got Tensor"):
        features({"a": IDS.values})


@line(
    "rows of a sample", "`sum`, `mean`, `max`, `sqrtn`", "`sum`, `mean`, `sqrtn`, `first`, `rows`"
)
def test_rows_of_a_sample():
    for mode in ("sum", "mean", "max", "sqrtn"):
        assert EmbeddingBag(2, mode=mode)(IDS).shape == (3, 2)
    for combiner, shape in (("sum", (3, 2)), ("mean", (3, 2)), ("sqrtn", (3, 2)), ("rows", (3, 2))):
        assert Features([Feature("a", dim=2, combiner=combiner)])({"a": IDS})["a"].shape == shape
    first = Features([Feature("a", dim=2, combiner="first", max_length=4)])
    assert first({"a": IDS})["a"].shape == (3, 4, 2)


@line("`missing=`", "`initial` or `zeros` for an id without a row in training mode")
def test_missing():
    for missing in ("initial", "zeros"):
        values = [call().detach() for _, call in pair(missing=missing)]
        assert torch.equal(*values)
        assert bool(values[0].count_nonzero()) == (missing == "initial")


@line("`eval()`", "an id without a row reads zeros; nothing is queued")
def test_eval():
    for module, call in pair():
        module.eval()
        assert call().count_nonzero() == 0
        assert not call().requires_grad


@line("`padding_idx`", "a key that is left out", "none; leave the id out of the sample")
def test_padding_idx():
    assert EmbeddingBag(2, padding_idx=2)(torch.tensor([[2]])).tolist() == [[0.0, 0.0]]
    with pytest.raises(TypeError, match="padding_idx"):
        Feature("a", dim=2, padding_idx=2)


@line("`per_sample_weights`", "with mode `sum`", "none")
def test_per_sample_weights():
    (bag, call), (features, _) = pair()
    assert torch.equal(bag(IDS, None, torch.full((3,), 2.0)), 2 * call())
    with pytest.raises(TypeError, match="per_sample_weights"):
        features({"a": IDS}, per_sample_weights=torch.ones(3))


@line("several features or tables", "a module for each", "one module, one call each way")
def test_several():
    features = Features([Feature("a", dim=2), Feature("b", dim=3), Feature("c", shares="a")])
    assert features({"a": IDS, "b": IDS, "c": IDS}).joined.shape == (3, 7)


@line("a step by `monolith.optim.Optimizer`", "one update of each key")
def test_a_step():
    assert_equal_tables([trained(*one) for one in pair()])


@line("a step without an optimizer", "`bag.step()`", "`features.pending.apply()`")
def test_a_step_without_an_optimizer():
    (bag, bag_call), (features, features_call) = pair()
    for call in (bag_call, features_call):
        call().square().sum().backward()
    assert bag.step() == features.pending.apply()
    assert_equal_tables([bag, features])


@line("`clip_grad_norm_`, `GradScaler`", "scale what is queued")
def test_clip_grad_norm():
    modules = []
    for module, call in pair():
        call().square().sum().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01)
        Optimizer(module).step()
        modules.append(module)
    assert_equal_tables(modules)


@line("`state_dict()`", "rows, optimizer state, times, candidates and counters")
def test_state_dict():
    for (module, call), (other, _) in zip(pair(), pair(), strict=True):
        file = io.BytesIO()
        torch.save(trained(module, call).state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file))
        assert_equal_tables([module, other])


@line("a state of another seed", "taken over if no seed and no name was given", "refused")
def test_a_state_of_another_seed():
    bag = EmbeddingBag(2)
    bag.load_state_dict(EmbeddingBag(2, seed=7).state_dict())
    assert bag.table.config.seed == 7
    with pytest.raises(ValueError, match="expected seed"):
        Features([Feature("a", dim=2)]).load_state_dict(pair()[1][0].state_dict())


@line("files", "`save(path)`, `load(path)`", "`save_tables(features.tables.values(), path)`")
def test_files(tmp_path):
    from monolith.table.disk import restore_tables, save_tables

    (bag, bag_call), (features, features_call) = pair()
    trained(bag, bag_call).save(tmp_path / "bag")
    save_tables(list(trained(features, features_call).tables.values()), tmp_path / "features")
    (twin, _), (other, _) = pair()
    twin.load(tmp_path / "bag")
    restore_tables(list(other.tables.values()), tmp_path / "features")
    assert_equal_tables([twin, other])


@line(
    "`copy.deepcopy`, `pickle`, `torch.save(model)`", "tables of its own; nothing is queued there"
)
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(copied):
    for module, call in pair():
        trained(module, call)
        call().sum().backward()
        twin = copied(module)
        assert_equal_tables([module, twin])
        assert table_of(module) is not table_of(twin)


@line("`torch.compile(fullgraph=True)`", "an op of the graph; training gives the same bits")
def test_compile():
    for (module, call), (other, run) in zip(pair(), pair(), strict=True):
        torch._dynamo.reset()
        compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
        assert_equal_tables([trained(module, call), trained(other, compiled)])


@line("`torch.export`", "an op that finds the tables, in this process")
def test_export():
    (bag, _), (features, _) = pair()

    class Joined(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.features = features

        def forward(self, ids):
            return self.features(ids).joined

    for module, argument in ((bag, IDS), (Joined(), {"a": IDS})):
        program = torch.export.export(module.eval(), (argument,))
        assert "monolith.lookup" in str(program.graph)


@line(
    "`from_pretrained(weights, keys)`",
    "there",
    "none; `features.tables[name].assign(keys, weights)`",
)
def test_from_pretrained():
    rows, keys = torch.ones(2, 2), torch.tensor([1, 2])
    bag = EmbeddingBag.from_pretrained(rows, keys, mode="sum")
    features = Features([Feature("a", dim=2)])
    features.tables["a"].assign(keys, rows)
    assert torch.equal(bag(IDS), features({"a": IDS})["a"])
    assert not hasattr(features, "from_pretrained")


@line("`.to(device)`, `.half()`", "leave rows and anchor as they are")
def test_casts():
    for module, call in pair():
        module.half()
        assert call().dtype == torch.float32
        assert [anchor.dtype for anchor in module.parameters()] == [torch.float32]


@line("tables in shards or on servers", "`table=`", "`make_table=`, `make_engine=`")
def test_tables_elsewhere():
    from monolith.cluster import ShardedTable

    features = Features([Feature("a", dim=2)], make_table=lambda c: ShardedTable.local(c, 2))
    bag = EmbeddingBag(2, table=features.tables["a"], mode="sum")
    assert torch.equal(bag(IDS), features({"a": IDS})["a"])


def test_the_page_has_a_line_for_each_test():
    tests = [value for name, value in globals().items() if name.startswith("test_")]
    lines = [test.line for test in tests if hasattr(test, "line")]
    assert len(lines) == len(tests) - 1
    assert first_rows(page("docs/features.md"), "| subject | `EmbeddingBag` |") == lines
