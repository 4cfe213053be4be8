import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.nn import EmbeddingBag
from monolith.ops import Ragged
from monolith.table import Bags, Zeros
from tests.nn.cases import IDS, OFFSETS, make_bag, rows
from tests.suites.table_base import assert_same_bits

NESTED = Ragged.from_lists([[1, 2], [3]]).to_nested()


@pytest.fixture
def bag():
    return make_bag()


def test_a_ragged_equals_ids_and_offsets(bag):
    ragged = Ragged.from_lists([[7, -3, 7], [], [1 << 62]])
    assert_same_bits(bag(ragged), bag(IDS, OFFSETS))


def test_a_matrix_equals_ids_and_offsets(bag):
    assert_same_bits(bag(IDS.reshape(2, 2)), bag(IDS, torch.tensor([0, 2])))


def test_a_matrix_without_columns_gives_empty_bags(bag):
    assert bag(torch.empty((3, 0), dtype=torch.int64)).tolist() == [[0.0, 0.0]] * 3


def test_no_bags_give_no_rows(bag):
    none = torch.empty(0, dtype=torch.int64)
    assert bag(none, none).shape == (0, 2)


def test_the_forward_is_the_pooled_lookup_of_the_table(bag):
    pooled = bag.table.lookup_bags(Bags(IDS, torch.tensor([0, 3, 3, 4])))
    assert_same_bits(bag(IDS, OFFSETS).detach(), pooled.values)


def test_int32_ids_and_offsets_are_widened(bag):
    ids = torch.tensor([7, -3, 7])
    assert_same_bits(bag(ids.int(), OFFSETS.int()[:1]), bag(ids, OFFSETS[:1]))


def test_ids_and_weights_need_not_be_contiguous(bag):
    ids, weights = torch.arange(8)[::2], torch.rand(8)[::2]
    expected = bag(ids.clone(), OFFSETS[:1], weights.clone())
    assert_same_bits(bag(ids, OFFSETS[:1], weights), expected)


def test_padding_is_left_out_of_a_mean_and_of_training():
    bag = make_bag(mode="mean", padding_idx=7, initializer=Zeros())
    bag(torch.tensor([[7, 1, 2]])).sum().backward()
    bag.step()
    assert rows(bag) == {1: [-0.5, -0.5], 2: [-0.5, -0.5]}


def test_a_padding_key_has_a_weight_gradient_of_zero():
    bag = make_bag(padding_idx=7)
    weights = torch.ones(3, requires_grad=True)
    bag(torch.tensor([7, 1, 2]), OFFSETS[:1], weights).sum().backward()
    expected = bag.table.lookup(torch.tensor([1, 2])).sum(1)
    torch.testing.assert_close(weights.grad, torch.cat([torch.zeros(1), expected]))


def test_the_ids_may_be_used_again_between_backward_and_step(bag):
    ids = torch.tensor([1, 2])
    bag(ids, OFFSETS[:1]).sum().backward()
    ids.fill_(9)
    bag.step()
    assert sorted(rows(bag)) == [1, 2]


def test_ids_changed_between_forward_and_backward_are_refused(bag):
    ids = torch.tensor([1, 2])
    pooled = bag(ids, OFFSETS[:1])
    ids.fill_(9)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pooled.sum().backward()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([1, 2],), TypeError, "expected input as a torch.Tensor, got list; make one with"),
        ((IDS.float(), OFFSETS), TypeError, "input of dtype int64 or int32, got float32; cast"),
        ((IDS, OFFSETS.float()), TypeError, "offsets of dtype int64 or int32, got float32"),
        ((IDS.to("meta"), OFFSETS), ValueError, "input on device cpu, got meta; move with .cpu()"),
        ((IDS,), ValueError, "expected offsets beside ids with 1 dimension, got None"),
        ((IDS, OFFSETS[None]), ValueError, r"offsets with 1 dimension, got shape \(1, 3\)"),
        ((IDS[None], OFFSETS), ValueError, r"no offsets beside ids with 2 dimensions, got .*3"),
        ((IDS[None, None],), ValueError, r"1 or 2 dimensions, got shape \(1, 1, 4\)"),
        ((Ragged.from_lists([[1]]), OFFSETS), ValueError, "expected no offsets beside a Ragged"),
        ((NESTED,), TypeError, "got a nested tensor; make a Ragged of it with Ragged.from_nested"),
        ((IDS, torch.tensor([1, 2])), ValueError, r"expected offsets from 0 on, got \[1, 2\]"),
        ((IDS, torch.tensor([0, 3, 2])), ValueError, r"that do not decrease, got \[0, 3, 2\]"),
        ((IDS, torch.tensor([0, 9])), ValueError, r"\[EmbeddingBag\] expected offsets of at most"),
        ((IDS, OFFSETS[:0]), ValueError, r"expected offsets for 4 ids, got \[\]"),
        ((IDS, OFFSETS, [1.0] * 4), TypeError, "per_sample_weights as a torch.Tensor, got list"),
        ((IDS, OFFSETS, torch.ones(4).to("meta")), ValueError, "weights on device cpu, got meta"),
        ((IDS, OFFSETS, torch.ones(3)), ValueError, r"of the ids, \(4,\), got \(3,\)"),
        ((IDS, OFFSETS, torch.ones(4).double()), TypeError, "weights of dtype float32, got flo"),
    ],
)  # fmt: skip
def test_a_wrong_input_is_refused(bag, arguments, error, text):
    with pytest.raises(error, match=text):
        bag(*arguments)
    assert len(bag.table) == 0


def test_a_last_offset_that_is_not_the_number_of_ids_is_refused():
    with pytest.raises(ValueError, match=r"offsets that end with 4, the .* got \[0, 3, 3\]"):
        make_bag(include_last_offset=True)(IDS, OFFSETS)


def test_no_last_offset_is_refused():
    with pytest.raises(ValueError, match=r"offsets that end with 4, the .* got \[\]"):
        make_bag(include_last_offset=True)(IDS, OFFSETS[:0])


@pytest.mark.parametrize("mode", ["mean", "max", "sqrtn"])
def test_weights_are_refused_outside_of_a_sum(mode):
    text = f"per_sample_weights only with mode 'sum', got mode '{mode}'"
    with pytest.raises(ValueError, match=text):
        make_bag(mode=mode)(IDS, OFFSETS, torch.ones(4))


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="expected mode in sum, mean, sqrtn, max, got 'avg'"):
        EmbeddingBag(2, mode="avg")


def test_a_closed_table_is_refused(bag):
    bag.table.close()
    with pytest.raises(FailedPreconditionError, match=r"expected an open table, got a closed one"):
        bag(IDS, OFFSETS)


def test_a_table_that_is_closed_before_the_step_is_refused(bag):
    bag(IDS, OFFSETS).sum().backward()
    bag.table.close()
    with pytest.raises(FailedPreconditionError, match=r"expected an open table, got a closed one"):
        bag.step()


def test_the_representation_names_table_and_mode():
    text = "EmbeddingBag(2, table='user', padding_idx=3, mode='sum')"
    assert repr(make_bag(padding_idx=3)) == text
