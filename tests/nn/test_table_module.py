import copy
import gc
import io
import pickle
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from monolith.embedding import SGD, Adam, MinCount, Table, Zeros, load_table
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.nn import Embedding, EmbeddingBag
from tests.nn.cases import IDS, OFFSETS, Model, make_bag, rows, train
from tests.suites.table_base import NOW, assert_same_rows

NEW = torch.tensor([[100]])


def trained(bag):
    bag(IDS, OFFSETS).square().sum().backward()
    bag.step()
    return bag


# Steps


def test_backward_changes_no_row_and_a_step_does():
    bag = make_bag(initializer=Zeros())
    bag(IDS, OFFSETS).sum().backward()
    assert rows(bag) == {}
    bag.step()
    assert rows(bag) == {7: [-2.0, -2.0], -3: [-1.0, -1.0], 1 << 62: [-1.0, -1.0]}


def test_two_lookups_make_one_step_per_key():
    bag = make_bag(initializer=Zeros(), optimizer=Adam(0.5))
    (bag(NEW) + 3 * bag(NEW)).sum().backward()
    assert bag.step().num_applied == 1
    once = make_bag(initializer=Zeros(), optimizer=Adam(0.5))
    (4 * once(NEW)).sum().backward()
    once.step()
    assert rows(bag) == rows(once)


def test_two_modules_of_one_table_make_one_step():
    first = make_bag(initializer=Zeros())
    second = Embedding(2, table=first.table)
    (first(NEW).sum() + second(NEW).sum()).backward()
    assert first.step().num_applied == 1
    assert second.step().num_applied == 0
    assert rows(first) == {100: [-2.0, -2.0]}


def test_gradients_of_several_backwards_accumulate():
    bag = make_bag(initializer=Zeros())
    for _ in range(3):
        bag(NEW).sum().backward()
    bag.step()
    assert rows(bag) == {100: [-3.0, -3.0]}


@pytest.mark.parametrize(
    "forget",
    [
        lambda bag: bag.zero_grad(),
        lambda bag: torch.nn.Sequential(bag).zero_grad(),
        lambda bag: torch.nn.Sequential(bag).zero_grad(set_to_none=False),
        lambda bag: torch.optim.SGD(bag.parameters(), lr=1.0).zero_grad(),
        lambda bag: setattr(bag.anchor, "grad", None),
    ],
    ids=["module", "model", "zeros", "optimizer", "by hand"],
)
@pytest.mark.parametrize("is_last", [True, False])
def test_gradients_set_to_zero_are_dropped(forget, is_last):
    bag = make_bag(initializer=Zeros())
    bag(NEW).sum().backward()
    forget(bag)
    if is_last:
        assert bag.step().num_applied == 0
    else:
        bag(NEW + 1).sum().backward()
        bag.step()
        assert rows(bag) == {101: [-1.0, -1.0]}


def test_a_step_without_backward_changes_nothing():
    bag = make_bag()
    assert bag.step() == (0, 0, 0, 0)
    assert bag.table.num_update_calls == 0


def test_a_step_empties_the_queue():
    bag = make_bag()
    bag(NEW).sum().backward()
    bag.step()
    assert bag.anchor.grad is None
    assert bag.step().num_applied == 0


def test_backward_twice_is_refused_and_queues_once():
    bag = make_bag(initializer=Zeros())
    loss = bag(NEW).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    bag.step()
    assert rows(bag) == {100: [-1.0, -1.0]}


def test_backward_twice_through_a_retained_graph_queues_twice():
    bag = make_bag(initializer=Zeros())
    loss = bag(NEW).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    bag.step()
    assert rows(bag) == {100: [-2.0, -2.0]}


def test_a_refused_step_keeps_the_queue_and_the_table():
    bag = make_bag()
    (bag(NEW) * float("nan")).sum().backward()
    with pytest.raises(ValueError, match="NaN or Inf|finite"):
        bag.step()
    assert rows(bag) == {}
    bag.zero_grad()
    assert bag.step().num_applied == 0


def test_learning_rates_and_time_of_a_step_reach_the_table():
    bag = make_bag(initializer=Zeros())
    bag(NEW).sum().backward()
    bag.step(learning_rates=[0.25], now=NOW - 9)
    assert rows(bag) == {100: [-0.25, -0.25]}
    assert bag.table.lookup_entry(NEW[0]).rows.times.tolist() == [NOW - 9]


# Modes


def test_a_new_key_reads_its_initial_row_in_training_and_zeros_in_eval():
    bag = make_bag()
    assert bag(NEW).tolist() == bag.table.lookup(NEW[0]).tolist()
    assert bag.eval()(NEW).tolist() == [[0.0, 0.0]]
    assert len(bag.table) == 0


def test_missing_zeros_reads_zeros_in_training_too():
    assert make_bag(missing="zeros")(NEW).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_nothing_is_queued_without_gradients(context):
    bag = make_bag()
    with context():
        assert not bag(NEW).requires_grad
    assert bag.queue.num_lookups == 0


def test_nothing_is_queued_in_eval():
    bag = make_bag().eval()
    assert not bag(NEW).requires_grad


def test_weights_get_gradients_in_eval_and_nothing_is_queued():
    bag = trained(make_bag()).eval()
    weights = torch.ones(1, requires_grad=True)
    bag(IDS[:1], OFFSETS[:1], weights).sum().backward()
    assert weights.grad.tolist() == bag.table.lookup(IDS[:1]).sum(1).tolist()
    assert bag.queue.num_lookups == 0


def test_the_mode_at_the_forward_decides():
    bag = make_bag()
    in_training = bag(NEW)
    in_eval = bag.eval()(NEW + 1)
    (in_training.sum() + in_eval.sum()).backward()
    bag.step()
    assert list(rows(bag)) == [100]


def test_a_frozen_module_is_not_trained():
    bag = make_bag().requires_grad_(False)
    assert not bag(NEW).requires_grad


def test_a_key_that_waits_for_admission_reads_zeros_and_is_counted():
    bag = make_bag(admission=MinCount(1))
    for expected in (1, 0):
        pooled = bag(NEW)
        assert pooled.tolist() == [[0.0, 0.0]]
        pooled.sum().backward()
        assert bag.step().num_refused == expected
    assert len(bag.table) == 1


def test_rows_stay_as_they_are_when_the_model_is_moved_or_cast():
    bag = trained(make_bag())
    before = rows(bag)
    model = torch.nn.Sequential(bag).half().to("meta")
    assert model(NEW).dtype == torch.float32
    assert model(NEW).device.type == bag.anchor.device.type == "cpu"
    assert rows(bag) == before


# Beside other parts of torch


def collate(samples):
    return torch.tensor(samples), torch.arange(0, len(samples), 2)


@pytest.mark.dist
def test_ids_come_from_workers_of_a_data_loader():
    samples = list(range(-20, 20))
    bag = make_bag(initializer=Zeros())
    loader = DataLoader(samples, batch_size=8, num_workers=2, collate_fn=collate)
    for ids, offsets in loader:
        bag(ids, offsets).sum().backward()
        bag.step()
    assert rows(bag) == {key: [-1.0, -1.0] for key in samples}


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_queues_once(use_reentrant):
    bag = make_bag(initializer=Zeros())
    scale = torch.ones(2, requires_grad=True)  # reentrant checkpoints need a differentiable input

    def part(scale):
        return bag(NEW) * scale

    loss = checkpoint(part, scale, use_reentrant=use_reentrant).sum() + bag(NEW + 1).sum()
    loss.backward()
    bag.step()
    assert rows(bag) == {100: [-1.0, -1.0], 101: [-1.0, -1.0]}


def test_gradients_that_are_only_returned_are_not_queued():
    bag = make_bag(initializer=Zeros())
    torch.autograd.grad(bag(NEW).sum(), bag.anchor)
    bag(NEW + 1).sum().backward()
    bag.step()
    assert list(rows(bag)) == [101]


def test_autocast_keeps_rows_and_gradients_in_float32():
    model = torch.nn.Sequential(make_bag(), torch.nn.Linear(2, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(NEW).sum().backward()
    assert model[0].step().num_applied == 1


def test_a_module_that_is_dropped_frees_its_table():
    bag = trained(make_bag())
    table = weakref.ref(bag.table)
    del bag
    gc.collect()
    assert table() is None


# State


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
    with pytest.raises(InvalidArgumentError, match="content of version 1, got version (None|2)"):
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
