import copy
import pickle

import pytest
import torch
from torch.utils import _pytree as pytree

from monolith.ops import Ragged, RaggedColumns

LISTS = {"user": [[7], [9]], "history": [[3, 1], []], "empty": [[], []]}


def make():
    return RaggedColumns.from_ragged({k: Ragged.from_lists(v) for k, v in LISTS.items()})


def lists_of(columns):
    return {name: ragged.to_lists() for name, ragged in columns.items()}


def test_it_is_a_mapping_of_ragged():
    columns = make()
    assert lists_of(columns) == LISTS
    assert (len(columns), columns.num_rows, list(columns)) == (3, 2, list(LISTS))
    assert "user" in columns
    assert columns.get("other") is None


def test_all_ids_lie_in_one_memory():
    columns = make()
    assert columns.ids.tolist() == [7, 9, 3, 1]
    assert columns.row_splits.tolist() == [[0, 1, 2], [0, 2, 2], [0, 0, 0]]
    columns["history"].values[0] = 4
    assert columns.ids.tolist() == [7, 9, 4, 1]


def test_a_feature_is_made_once():
    columns = make()
    assert columns["user"] is columns["user"]


def test_what_is_left_out_is_gone_and_shares_the_memory():
    columns = make()
    less = columns.without({"user"})
    assert lists_of(less) == {name: LISTS[name] for name in ("history", "empty")}
    assert less.ids is columns.ids
    assert columns.without({"history"}).names is not less.names
    with pytest.raises(KeyError):
        less["user"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))])
def test_a_copy_has_the_same_lists_and_its_own_memory(copied):
    columns = make().without({"user"})
    other = copied(columns)
    columns.ids.zero_()
    assert lists_of(other) == {name: LISTS[name] for name in ("history", "empty")}


def test_it_is_equal_to_itself_only():
    columns = make()
    assert columns == columns
    assert columns != make()
    assert len({columns, make()}) == 2


def test_it_is_a_tree_of_two_tensors():
    columns = make().without({"user"})
    leaves, spec = pytree.tree_flatten(columns)
    assert [leaf.shape for leaf in leaves] == [(4,), (3, 3)]
    assert spec == pytree.tree_structure(make().without({"user"}))
    assert lists_of(pytree.tree_map(torch.clone, columns)) == lists_of(columns)


def test_it_moves_as_a_whole():
    columns = make()
    assert columns.to("cpu") is columns
    moved = columns.to("meta")
    assert moved["history"].values.shape == (2,)
    assert moved.names is columns.names


def test_its_text_names_the_features():
    assert repr(make()) == "RaggedColumns(user, history, empty; 2 rows)"


def test_no_features_have_rows_too():
    nothing = RaggedColumns([], torch.empty(0, dtype=torch.int64), torch.zeros(0, 4).long())
    assert (len(nothing), nothing.num_rows, dict(nothing)) == (0, 3, {})


IDS, SPLITS = torch.tensor([7, 9]), torch.tensor([[0, 1, 2]])
BAD = [
    (["a", "a"], IDS, SPLITS, ValueError, "expected different names, got a, a"),
    (["a"], [7, 9], SPLITS, TypeError, "expected ids as a torch.Tensor, got list"),
    (["a"], IDS.int(), SPLITS, TypeError, "expected ids of int64, got int32"),
    (["a"], IDS, SPLITS.float(), TypeError, "expected row_splits of int64, got float32"),
    (["a"], IDS, SPLITS[0], ValueError, r"row_splits with 2 dimensions, got shape \(3,\)"),
    (["a"], IDS, SPLITS.to("meta"), ValueError, "on device cpu, that of ids, got meta"),
    (["a", "b"], IDS, SPLITS, ValueError, r"shape \(2, num_rows \+ 1\), got \(1, 3\)"),
    (["a"], IDS, SPLITS[:, :0], ValueError, r"shape \(1, num_rows \+ 1\), got \(1, 0\)"),
    (["a"], IDS, SPLITS + 1, ValueError, "that ascend from 0, got others"),
    (["a"], IDS, torch.tensor([[0, 2, 1]]), ValueError, "that ascend from 0, got others"),
    (["a"], IDS, SPLITS[:, :2], ValueError, "row_splits of all 2 ids, got 1"),
]


@pytest.mark.parametrize(("names", "ids", "splits", "error", "text"), BAD)
def test_what_does_not_fit_is_refused(names, ids, splits, error, text):
    with pytest.raises(error, match=rf"^\[RaggedColumns\] .*{text}"):
        RaggedColumns(names, ids, splits)


def test_only_features_of_equal_length_are_joined():
    with pytest.raises(ValueError, match=r"expected 1 rows of every feature, got 2 .*'b'"):
        RaggedColumns.from_ragged({"a": Ragged.from_lists([[1]]), "b": Ragged.from_lists([[], []])})
    with pytest.raises(ValueError, match="expected at least one feature, got none"):
        RaggedColumns.from_ragged({})
