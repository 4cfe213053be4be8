"""State, files, copies and pretrained rows of the modules with tables."""

import copy
import io
import pickle

import pytest
import torch

from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.nn import Embedding, EmbeddingBag
from monolith.table import MinCount, Table
from monolith.table.disk import load_table
from monolith.table.optimizers import SGD, Adam
from tests.nn.cases import NEW, Model, make_bag, rows, train, trained
from tests.suites.table_base import NOW, assert_same_rows


def saved(module):
    """A state that went through a file."""
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    return torch.load(file)


def test_a_state_holds_all_that_a_table_has():
    options = {"optimizer": Adam(0.1), "admission": MinCount(1), "precision": "bf16"}
    bag = trained(trained(make_bag(**options)))
    bag(NEW).sum().backward()
    bag.step()
    other = make_bag(**options)
    assert str(other.load_state_dict(saved(bag))) == "<All keys matched successfully>"
    for one in (bag, other):
        one(torch.tensor([[100, 7, 5]])).sum().backward()
        one.step()
    assert len(other.table) == 4
    assert_same_rows(bag.table, other.table)
    for name, column in bag.table.export_candidates().items():
        assert torch.equal(column, other.table.export_candidates()[name])
    assert other.table.num_update_calls == bag.table.num_update_calls == 4
    assert other.table.latest_time == NOW


def test_a_state_of_a_module_without_a_name_brings_its_seed():
    torch.manual_seed(0)
    bag, other = EmbeddingBag(2), EmbeddingBag(2)
    trained(bag)
    assert not torch.equal(bag(NEW), other(NEW))
    other.load_state_dict(saved(bag))
    assert torch.equal(bag(NEW), other(NEW))
    assert_same_rows(bag.table, other.table)


def test_a_seed_comes_with_a_state_in_any_order_of_the_modules():
    def make():
        bag = EmbeddingBag(2)
        return torch.nn.ModuleList([Embedding(2, table=bag.table), bag])

    model, other = make(), make()
    trained(model[1])
    other.load_state_dict(saved(model))
    assert torch.equal(model[0](NEW), other[0](NEW))


def test_a_training_goes_on_after_a_state_was_loaded():
    model, other = Model(), Model()
    train(model, model, num_steps=4, dense=torch.optim.SGD)
    other.load_state_dict(saved(model))
    train(model, model, num_steps=3, dense=torch.optim.SGD)
    train(other, other, num_steps=3, dense=torch.optim.SGD)
    assert_same_rows(model.bag.table, other.bag.table)
    assert_same_rows(model.embedding.table, other.embedding.table)


def test_loading_drops_the_queue():
    bag = make_bag()
    state = saved(bag)
    bag(NEW).sum().backward()
    bag.load_state_dict(state)
    assert bag.step().num_applied == 0


def test_a_module_whose_state_was_assigned_is_trained():
    bag = make_bag()
    bag.load_state_dict(saved(trained(make_bag())), assign=True)
    bag(NEW).sum().backward()
    assert bag.step().num_applied == 1
    assert len(bag.table) == 4


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"optimizer": Adam(0.1)}, r"expected segments\[0\].optimizer.* 'SGD' .* got"),
        ({"name": "item"}, "expected name 'user' as in the saved state, got 'item'"),
        ({"seed": 7}, "expected seed .* as in the saved state, got 7"),
    ],
)
def test_a_state_of_another_config_is_refused(change, text):
    other = make_bag(**change)
    with pytest.raises(InvalidArgumentError, match=text):
        other.load_state_dict(saved(trained(make_bag())))
    assert len(other.table) == 0


@pytest.mark.parametrize("state", [None, {"version": 2}])
def test_a_state_of_another_version_is_refused(state):
    with pytest.raises(InvalidArgumentError, match=r"content of version 1, got version (None|2)"):
        make_bag().set_extra_state(state)


def test_a_state_of_a_torch_module_is_refused_with_the_way_out():
    state = {"weight": torch.zeros(3, 2)}
    with pytest.raises(RuntimeError, match=r"weight is of a torch module; make ours with Embed"):
        make_bag().load_state_dict(state)


def test_learning_rates_may_differ_from_those_of_a_state():
    other = make_bag(optimizer=SGD(0.5))
    other.load_state_dict(saved(trained(make_bag())))
    assert len(other.table) == 3


@pytest.mark.parametrize("name", ["user", None])
def test_files_hold_all_that_a_table_has(tmp_path, name):
    options = {} if name is None else {"name": name}
    bag, other = EmbeddingBag(2, **options), EmbeddingBag(2, **options)
    trained(bag).save(tmp_path)
    other.load(tmp_path)
    assert_same_rows(bag.table, other.table)
    assert torch.equal(bag(NEW), other(NEW))
    assert_same_rows(load_table(tmp_path), other.table)


def test_a_missing_file_is_refused(tmp_path):
    bag = trained(EmbeddingBag(2))
    with pytest.raises(NotFoundError):
        bag.load(tmp_path)
    assert len(bag.table) == 3


def test_a_deep_copy_has_a_table_of_its_own():
    model = Model()
    train(model, model, num_steps=2)
    twin = copy.deepcopy(model)
    assert_same_rows(twin.bag.table, model.bag.table)
    before = len(model.bag.table)
    twin.bag(NEW).sum().backward()
    twin.bag.step()
    assert model.bag.step().num_applied == 0
    assert (len(model.bag.table), len(twin.bag.table)) == (before, before + 1)
    assert twin.bag.anchor is twin.bag.queue.anchor


def test_a_deep_copy_shares_a_table_where_the_model_does():
    first = make_bag()
    model = torch.nn.ModuleList([first, Embedding(2, table=first.table)])
    twin = copy.deepcopy(model)
    assert twin[0].table is twin[1].table
    assert twin[0].table is not first.table


def test_a_pickled_module_comes_back_with_its_table():
    bag = trained(EmbeddingBag(2, name="user", optimizer=SGD(1.0)))
    twin = pickle.loads(pickle.dumps(bag))
    assert_same_rows(twin.table, bag.table)
    twin(NEW).sum().backward()
    assert twin.step().num_applied == 1
    assert len(bag.table) == 3


def test_a_clock_that_cannot_be_pickled_is_refused_by_pickle():
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(make_bag())


def test_reset_parameters_forgets_rows_and_queue():
    bag = trained(make_bag())
    bag(NEW).sum().backward()
    bag.reset_parameters()
    assert (len(bag.table), bag.step().num_applied) == (0, 0)


# Pretrained rows


def test_pretrained_rows_are_read_by_their_keys():
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    bag = EmbeddingBag.from_pretrained(weights, torch.tensor([-7, 1 << 40]), mode="sum")
    assert bag(torch.tensor([[-7, 1 << 40]])).tolist() == [[4.0, 6.0]]
    assert not bag.anchor.requires_grad


def test_pretrained_keys_of_int32_are_widened():
    found = Embedding.from_pretrained(torch.ones(2, 2), torch.tensor([-7, 5], dtype=torch.int32))
    assert rows(found) == {-7: [1.0, 1.0], 5: [1.0, 1.0]}


def test_pretrained_rows_are_trained_unless_frozen():
    bag = EmbeddingBag.from_pretrained(torch.zeros(1, 2), freeze=False, optimizer=SGD(1.0))
    bag(torch.tensor([[0]])).sum().backward()
    bag.step()
    assert rows(bag) == {0: [-1.0, -1.0]}


def test_pretrained_rows_do_not_wait_for_admission():
    bag = EmbeddingBag.from_pretrained(torch.ones(2, 2), admission=MinCount(9))
    assert len(bag.table) == 2


@pytest.mark.parametrize("weights", [torch.ones(3), [[1.0]]])
def test_pretrained_rows_that_are_no_matrix_are_refused(weights):
    with pytest.raises(ValueError, match="expected weights as a matrix, got"):
        Embedding.from_pretrained(weights)


def test_pretrained_rows_need_a_key_each():
    with pytest.raises(ValueError, match=r"expected values of shape \(3, 2\), got \(2, 2\)"):
        Embedding.from_pretrained(torch.ones(2, 2), torch.arange(3))


def test_a_table_may_be_given_and_is_kept():
    table = Table(make_bag().table.config)
    bag = EmbeddingBag(2, table=table)
    assert bag.table is table
    assert (bag.dim, bag.embedding_dim) == (2, 2)
