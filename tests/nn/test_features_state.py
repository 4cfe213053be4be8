"""What casts, copies and states of a model do to the tables of its `Features`."""

import copy
import io
import pickle
from functools import partial

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from monolith.cluster import ShardedTable
from monolith.errors import InvalidArgumentError
from monolith.native_training.saver import PartialRecoverySaver
from monolith.nn import Feature, Features
from monolith.ops import Ragged
from monolith.optim import Optimizer
from monolith.table import Table
from monolith.table.optimizers import SGD, Adagrad
from tests.suites.table_base import NOW, assert_same_rows

IDS = {"a": Ragged.from_lists([[1], [], [2, 1]]), "b": Ragged.from_lists([[1, 5], [7], []])}


def clock():
    return NOW


def make():
    """A table of pooled rows and one of rows kept apart."""
    pooled = Feature("a", dim=2, optimizer=Adagrad(0.1))
    kept = Feature("b", dim=2, combiner="rows", optimizer=SGD(0.1))
    return Features([pooled, kept], make_table=partial(Table, clock=clock))


def backward(module, factor=1.0):
    """A loss whose gradient depends on the rows."""
    found = module(IDS)
    (factor * (found["a"].square().sum() + found["b"].square().sum() + found["a"].sum())).backward()


def trained(module, num_steps=3):
    optimizer = Optimizer(module)
    for _ in range(num_steps):
        backward(module)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
    return module


def assert_same_tables(first, second):
    assert list(first.tables) == list(second.tables)
    for name, table in first.tables.items():
        assert len(table) > 0
        assert_same_rows(table, second.tables[name])


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.bfloat16(),
        lambda model: model.half(),
        lambda model: model.double(),
        lambda model: model.to("meta"),
        lambda model: model.to_empty(device="meta"),
    ],
    ids=["bfloat16", "half", "double", "to", "to_empty"],
)
def test_a_model_that_is_cast_or_moved_trains_the_same_rows(change):
    model = torch.nn.Sequential(make())
    change(model)
    assert [anchor.dtype for anchor in model.parameters()] == [torch.float32]
    assert_same_tables(trained(model[0]), trained(make()))


# State


def saved(module):
    """A state that went through a file."""
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    return torch.load(file)


def test_a_state_holds_the_rows_of_all_tables():
    module, other = trained(make()), make()
    assert str(other.load_state_dict(saved(module))) == "<All keys matched successfully>"
    assert_same_tables(module, other)


def test_a_training_goes_on_after_a_state_was_loaded():
    module, other = trained(make()), make()
    other.load_state_dict(saved(module))
    assert_same_tables(trained(module), trained(other))
    assert other.tables["a"].num_update_calls == 6


def test_a_state_without_rows_is_refused():
    state = saved(trained(make()))
    del state["_extra_state"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "_extra_state"'):
        make().load_state_dict(state)


def test_an_assigned_state_leaves_the_anchors_connected():
    module = make()
    module.load_state_dict(saved(trained(make())), assign=True)
    assert_same_tables(trained(module), trained(make(), 6))
    backward(module)
    torch.nn.Sequential(module).zero_grad()
    assert [held.queue.num_lookups for held in module.queues] == [0]


def test_loading_drops_the_queues():
    module = make()
    backward(module)
    module.load_state_dict(saved(make()))
    assert [held.queue.num_lookups for held in module.queues] == [0]


@pytest.mark.parametrize("state", [None, {}, {"version": 2}])
def test_a_state_of_another_version_is_refused(state):
    text = r"^\[load_state_dict\] expected a state of Features of version 1, got version (None|2)$"
    with pytest.raises(InvalidArgumentError, match=text):
        make().set_extra_state(state)


@pytest.mark.parametrize(
    ("tables", "names"), [({"a": 0, "c": 0}, "a, c"), ({}, "none"), (1, "none")]
)
def test_a_state_of_other_tables_is_refused(tables, names):
    text = rf"^\[load_state_dict\] expected the tables {names} as in the saved state, got a, b$"
    with pytest.raises(InvalidArgumentError, match=text):
        make().set_extra_state({"version": 1, "tables": tables})


def test_a_state_that_a_table_refuses_changes_no_table():
    module, state = trained(make()), saved(make())
    state["_extra_state"]["tables"]["b"]["config"]["seed"] += 1
    with pytest.raises(InvalidArgumentError, match=r"expected seed .* \(table 'b'\)"):
        module.load_state_dict(state)
    assert_same_tables(module, trained(make()))


def test_a_state_of_tables_in_shards_holds_their_rows():
    shards = Features([Feature("a", dim=2)], make_table=partial(ShardedTable.local, num_shards=2))
    shards({"a": IDS["a"]})["a"].sum().backward()
    Optimizer(shards).step()
    alone = Features([Feature("a", dim=2)])
    alone.load_state_dict(saved(shards))
    assert_same_tables(shards, alone)


def test_a_saver_of_modules_refuses_features():
    text = (
        r"got dict as 'm\._extra_state'; .* or save tables with tables= and the dense modules alone"
    )
    with pytest.raises(TypeError, match=text):
        PartialRecoverySaver({"m": make()})


# Copies


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda module: pickle.loads(pickle.dumps(module)),
        lambda module: AveragedModel(module).module,
    ],
    ids=["deepcopy", "pickle", "AveragedModel"],
)
def test_a_copy_has_tables_of_its_own_and_trains_alike(copied):
    module = trained(make())
    twin = copied(module)
    assert_same_tables(module, twin)
    trained(twin)
    assert_same_tables(module, trained(make()))
    assert_same_tables(twin, trained(make(), 6))


def test_a_model_that_was_saved_whole_comes_back_with_its_tables(tmp_path):
    model = torch.nn.Sequential(trained(make()))
    torch.save(model, tmp_path / "model")
    twin = torch.load(tmp_path / "model", weights_only=False)
    assert_same_tables(model[0], twin[0])
    assert list(twin[0].features) == ["a", "b"]


def test_nothing_is_queued_in_a_copy():
    module = make()
    backward(module)
    twin = copy.deepcopy(module)
    assert [held.queue.num_lookups for held in twin.queues] == [0]
    assert [held.queue.num_lookups for held in module.queues] == [1]


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_copies_of_tables_in_shards_are_refused(copied):
    make_table = partial(ShardedTable.local, num_shards=2)
    module = Features([Feature("a", dim=2)], make_table=make_table)
    text = r"^\[copy.deepcopy, pickle\] expected .* got ShardedTable \(table 'a'\), whose rows live"
    with pytest.raises(TypeError, match=text):
        copied(module)


def test_a_state_of_the_time_when_rows_had_an_anchor_of_their_own_loads():
    module = trained(make())
    state = saved(module)
    state["queues.1.anchor"] = torch.zeros(1)
    other = make()
    torch.nn.Sequential(other).load_state_dict({f"0.{name}": v for name, v in state.items()})
    assert_same_tables(module, other)
