import pytest
import torch
from torch.utils import _pytree as pytree

from monolith.data import Batch
from monolith.ops import Ragged, RaggedColumns


def make():
    return Batch(
        {"user": Ragged.from_lists([[7], [8, 9]])},
        {"price": torch.tensor([0.5, 2.0])},
        {"click": torch.tensor([1.0, 0.0])},
        torch.ones(2),
        torch.tensor([10, 11]),
    )


def joined():
    return Batch(RaggedColumns.from_ragged(make().features), make().dense)


def test_ids_in_one_memory_count_and_move_like_others():
    batch = joined()
    assert len(batch) == 2
    moved = batch.to("meta")
    assert (moved.features["user"].values.shape, moved.features["user"].device.type) == (
        (3,),
        "meta",
    )
    assert moved.features is not batch.features
    assert batch.to("cpu").features is batch.features


def test_ids_in_one_memory_have_as_many_rows_as_the_rest():
    with pytest.raises(ValueError, match=r"expected 2 samples .* as in 'user', got 3 in 'x'"):
        Batch(joined().features, dense={"x": torch.ones(3)})


def test_length_is_the_number_of_samples():
    assert len(make()) == 2


def test_label_is_the_only_label():
    assert make().label.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("labels", [{}, {"a": torch.ones(2), "b": torch.ones(2)}])
def test_label_of_none_or_several_is_refused(labels):
    batch = Batch(dense={"x": torch.ones(2)}, labels=labels)
    with pytest.raises(ValueError, match=r"\[Batch.label\] expected one label, got"):
        _ = batch.label


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"expected 2 samples .* as in 'a', got 3 in 'weight'"):
        Batch(dense={"a": torch.ones(2)}, weight=torch.ones(3))


def test_a_batch_without_columns_is_refused():
    with pytest.raises(ValueError, match=r"\[Batch\] expected at least one column, got none"):
        Batch()


def test_to_moves_every_column():
    moved = make().to("meta")
    assert {leaf.device.type for leaf in pytree.tree_leaves(moved)} == {"meta"}
    assert len(pytree.tree_leaves(moved)) == 6


def test_a_batch_without_weight_and_time_moves():
    moved = Batch(dense={"x": torch.ones(2)}).to("cpu")
    assert moved.weight is None
    assert moved.time is None


def test_a_tree_map_keeps_the_form():
    doubled = pytree.tree_map(lambda leaf: leaf * 2, make())
    assert doubled.features["user"].values.tolist() == [14, 16, 18]
    assert doubled.time.tolist() == [20, 22]
