import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.features.core import CoreEngine
from monolith.features.plain import PlainEngine
from monolith.nn import Feature, Features
from monolith.ops import Ragged
from monolith.optim import Optimizer
from monolith.table import MinCount, Segment, Zeros
from monolith.table.optimizers import SGD
from monolith.table.reference import ReferenceTable

IDS = Ragged.from_lists([[1], [], [2, 3, 4]])
ROWS = torch.tensor([[1.0, 2.0], [2.0, 3.0], [3.0, 5.0], [10.0, 11.0]])


def made(*features):
    """Features, with rows 1..4 of every table of dim 2 set."""
    module = Features(features)
    for table in module.tables.values():
        table.assign(torch.arange(1, 5), ROWS)
    return module


def embedded(combiner, ids=IDS, **options):
    return made(Feature("a", dim=2, combiner=combiner, **options))({"a": ids})


def stepped(module):
    Optimizer(module).step()
    return module.tables["a"].lookup(torch.arange(1, 5))


@pytest.mark.parametrize(
    ("combiner", "expected"),
    [
        ("sum", [[1, 2], [0, 0], [15, 19]]),
        ("mean", [[1, 2], [0, 0], [5, 19 / 3]]),
        ("sqrtn", [[1, 2], [0, 0], [15 / 3**0.5, 19 / 3**0.5]]),
    ],
)
def test_rows_of_a_sample_are_combined_and_no_rows_give_zeros(combiner, expected):
    torch.testing.assert_close(embedded(combiner)["a"].detach(), torch.tensor(expected).float())


def test_only_the_first_ids_of_a_sample_count():
    assert embedded("sum", max_length=2)["a"].tolist() == [[1, 2], [0, 0], [5, 8]]


def test_first_keeps_the_rows_of_a_sample_apart():
    expected = [[[1, 2], [0, 0]], [[0, 0], [0, 0]], [[2, 3], [3, 5]]]
    assert embedded("first", max_length=2)["a"].tolist() == expected


def test_the_mask_says_which_rows_of_first_are_of_ids():
    mask = embedded("first", max_length=2).mask("a")
    assert (mask.dtype, mask.tolist()) == (torch.int32, [[1, 0], [0, 0], [1, 1]])


def test_rows_keeps_all_of_them():
    found = embedded("rows")
    assert found["a"].tolist() == ROWS.tolist()
    assert found.joined.shape == (3, 0)


def test_rows_of_int32_ids_are_those_of_int64():
    narrow = Ragged(IDS.values.int(), IDS.row_splits)
    assert embedded("rows", narrow)["a"].tolist() == ROWS.tolist()


def test_rows_of_ids_that_lie_apart_are_theirs():
    apart = Ragged(IDS.values.repeat_interleave(2)[::2], IDS.row_splits)
    assert embedded("rows", apart)["a"].tolist() == ROWS.tolist()


def test_rows_of_ids_of_another_type_are_refused():
    text = r"^\[Features.lookup\] expected ids of 'a' of dtype int64 or int32, got float32"
    with pytest.raises(TypeError, match=text):
        _ = embedded("rows", Ragged(IDS.values.float(), IDS.row_splits))["a"]


def test_rows_of_no_ids_are_none():
    assert embedded("rows", Ragged.from_lists([[], []]))["a"].shape == (0, 2)


@pytest.mark.parametrize(
    ("combiner", "expected"),
    [
        ("sum", [0, 0, 0, 0]),
        ("mean", [0, 2, 2, 2]),
        ("first", [0, 0, 0, 3]),
        ("rows", [0, 0, 0, 0]),
    ],
)
def test_a_gradient_of_one_changes_each_row_by_its_share(combiner, expected):
    # Every row begins at 3, the rate: a whole gradient makes it 0, a third of one 2.
    length = 2 if combiner == "first" else 0
    module = Features(
        [Feature("a", dim=1, combiner=combiner, max_length=length, optimizer=SGD(3.0))]
    )
    module.tables["a"].assign(torch.arange(1, 5), torch.full((4, 1), 3.0))
    module({"a": IDS})["a"].sum().backward()
    assert stepped(module).flatten().tolist() == expected


def test_features_of_one_table_train_the_same_rows():
    features = [Feature("a", dim=1, optimizer=SGD(1.0), initializer=Zeros())]
    module = Features([*features, Feature("b", shares="a", combiner="mean")])
    one = Ragged.from_lists([[1]])
    found = module({"a": one, "b": one})
    (found["a"] + 2 * found["b"]).sum().backward()
    assert stepped(module).tolist() == [[-3.0], [0.0], [0.0], [0.0]]


def test_slices_are_trained_by_optimizers_of_their_own():
    slices = [Segment(1, SGD(1.0), Zeros(), "fast"), Segment(1, SGD(0.25), Zeros(), "slow")]
    module = Features([Feature("a", slices=slices)])
    found = module({"a": Ragged.from_lists([[1]])})
    (found.slice("a", "fast") + found.slice("a", "slow")).sum().backward()
    assert stepped(module)[0].tolist() == [-1.0, -0.25]


def test_a_bias_is_apart_from_the_rows_and_joined_has_both():
    module = Features([Feature("a", dim=2, bias=True)])
    module.tables["a"].assign(torch.tensor([1]), torch.tensor([[7.0, 1.0, 2.0]]))
    found = module({"a": Ragged.from_lists([[1], []])})
    assert found["a"].tolist() == [[1, 2], [0, 0]]
    assert found.bias("a").tolist() == [[7], [0]]
    assert found.joined.tolist() == [[7, 1, 2], [0, 0, 0]]


def test_a_bias_is_trained_by_ftrl_from_zero():
    module = Features([Feature("a", dim=1, bias=True)])
    module({"a": Ragged.from_lists([[1]])}).bias("a").sum().backward()
    # FTRL with gradient 1: z = 1, n = 1 + 1e-6, so the weight is -rate / (sqrt(n) + beta).
    expected = -0.01 / ((1 + 1e-6) ** 0.5 + 1)
    assert stepped(module)[0, 0].item() == pytest.approx(expected, rel=1e-6)


def test_a_sequence_has_a_bias_for_each_row():
    module = Features([Feature("a", dim=2, bias=True, combiner="first", max_length=3)])
    found = module({"a": IDS})
    assert (found["a"].shape, found.bias("a").shape) == ((3, 3, 2), (3, 3, 1))


def test_an_id_is_trained_once_it_is_admitted():
    module = Features(
        [Feature("a", dim=1, optimizer=SGD(1.0), initializer=Zeros(), admission=MinCount(1))]
    )
    for expected in (0.0, -1.0):
        module({"a": Ragged.from_lists([[1]])})["a"].sum().backward()
        assert stepped(module)[0].item() == expected


def test_a_missing_id_reads_as_zeros_in_eval_mode_and_is_not_trained():
    module = Features([Feature("a", dim=2), Feature("b", dim=2, combiner="rows")]).eval()
    found = module({"a": Ragged.from_lists([[9]]), "b": Ragged.from_lists([[9]])})
    assert [found["a"].tolist(), found["b"].tolist()] == [[[0, 0]], [[0, 0]]]
    assert not found["a"].requires_grad
    assert not found["b"].requires_grad


def test_tables_are_made_by_the_given_function():
    module = Features([Feature("a", dim=2)], make_table=ReferenceTable)
    assert isinstance(module.tables["a"], ReferenceTable)


def test_a_slice_called_bias_is_no_bias():
    module = made(Feature("a", slices=[Segment(1, name="bias"), Segment(1)]))
    assert module({"a": IDS})["a"].shape == (3, 2)


def test_a_feature_that_shares_has_the_bias_of_the_owner():
    module = Features([Feature("a", dim=2, bias=True), Feature("b", shares="a")])
    assert module({"a": IDS, "b": IDS}).bias("b").shape == (3, 1)


def test_it_is_a_mapping_of_all_features_in_their_order():
    module = made(Feature("a", dim=2, combiner="rows"), Feature("b", dim=2))
    found = module({"b": IDS, "a": IDS, "other": IDS})
    assert list(found) == ["a", "b"]
    assert len(found) == 2
    assert (module.width, module.columns) == (2, {"b": slice(0, 2)})


def test_each_feature_has_its_own_columns_of_joined():
    found = Features([Feature("b", dim=3), Feature("a", dim=1)])({"a": IDS, "b": IDS})
    assert found["b"].tolist() == found.joined[:, :3].tolist()
    assert found["a"].tolist() == found.joined[:, 3:].tolist()


def test_dense_columns_come_behind_the_features():
    module = made(Feature("a", dim=2), Feature("b", dim=2, combiner="first", max_length=2))
    found = module({"a": IDS, "b": IDS}, dense=torch.tensor([[7.0], [8.0], [9.0]]))
    assert found.joined[0].tolist() == [1, 2, 1, 2, 0, 0, 7]
    assert found["a"].tolist() == [[1, 2], [0, 0], [15, 19]]
    assert found["b"].tolist() == [[[1, 2], [0, 0]], [[0, 0], [0, 0]], [[2, 3], [3, 5]]]
    assert found.joined[:, module.columns["a"]].tolist() == found["a"].tolist()


def test_dense_columns_stand_alone_where_rows_are_kept_apart():
    found = made(Feature("a", dim=2, combiner="rows"))({"a": IDS}, dense=torch.ones(3, 4))
    assert found.joined.tolist() == [[1.0] * 4] * 3


def test_dense_columns_of_another_number_of_samples_are_refused():
    for combiner in ("sum", "rows"):
        with pytest.raises(ValueError, match=r"of shape \(3, columns\), .* got \(2, 1\)"):
            made(Feature("a", dim=2, combiner=combiner))({"a": IDS}, dense=torch.ones(2, 1))


def test_rows_are_counted_and_tables_closed():
    module = made(Feature("a", dim=2), Feature("b", dim=2))
    assert module.num_rows() == 8
    assert "2 features, 2 tables, width 4" in repr(module)
    module.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        module.tables["b"].lookup(torch.tensor([1]))


def test_a_model_without_features_reads_its_dense_columns():
    module, numbers = Features([]), torch.ones(3, 2)
    assert module({}, dense=numbers).joined is numbers
    assert (module.width, module.num_rows(), dict(module.tables)) == (0, 0, {})


def test_the_plain_engine_alone_takes_no_tables():
    matrix, looked = PlainEngine([], []).lookup({}, None, torch.ones(3, 2), "zeros")
    assert (matrix.tolist(), looked.num_keys) == ([[1.0, 1.0]] * 3, 0)
    with pytest.raises(ValueError, match=r"^\[Features\] expected at least one table, got none$"):
        CoreEngine([], [])


def test_missing_ids_are_refused_by_name():
    module = made(Feature("a", dim=2), Feature("b", dim=2))
    with pytest.raises(ValueError, match=r"^\[Features\] expected ids of a, got those of b, c$"):
        module({"b": IDS, "c": IDS})


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda found: found["x"], "[Embedded] expected a feature (a), got 'x'"),
        (
            lambda found: found.slice("a", "x"),
            "[Embedded.slice] expected a slice of feature 'a' (0), got 'x'",
        ),
        (
            lambda found: found.bias("a"),
            "[Embedded.bias] expected a feature with bias=True, got 'a' without",
        ),
        (
            lambda found: found.mask("a"),
            "[Embedded.mask] expected a feature with combiner 'first', got 'a' with 'sum'",
        ),
    ],
)
def test_what_a_feature_has_not_is_refused(call, text):
    with pytest.raises(KeyError) as caught:
        call(embedded("sum"))
    assert caught.value.args[0] == text


def test_rows_kept_apart_and_pooled_rows_train_one_table_in_one_step():
    owner = Feature("user", dim=1, optimizer=SGD(1.0), initializer=Zeros())
    module = Features([owner, Feature("kept", shares="user", combiner="rows")])
    found = module({"user": Ragged.from_lists([[1, 2]]), "kept": Ragged.from_lists([[2, 3]])})
    (found["user"].sum() + 2 * found["kept"].sum()).backward()
    Optimizer(module).step()
    assert module.tables["user"].lookup(torch.arange(1, 4)).tolist() == [[-1.0], [-3.0], [-2.0]]
    assert module.tables["user"].num_update_calls == 1


def test_rows_that_no_loss_uses_are_not_trained():
    module = Features([Feature("a", dim=1), Feature("b", dim=1, combiner="rows")])
    module({"a": IDS, "b": IDS})["a"].sum().backward()
    Optimizer(module).step()
    assert [len(table) for table in module.tables.values()] == [4, 0]


def test_a_missing_id_may_read_zeros_in_training_mode_too():
    module = Features([Feature("a", dim=2), Feature("b", dim=2, combiner="rows")], missing="zeros")
    found = module({"a": Ragged.from_lists([[9]]), "b": Ragged.from_lists([[9]])})
    assert [found["a"].tolist(), found["b"].tolist()] == [[[0, 0]], [[0, 0]]]
    assert found["a"].requires_grad


def test_another_way_to_read_a_missing_id_is_refused():
    text = r"^\[Features\] expected missing 'initial' or 'zeros', got 'ones'$"
    with pytest.raises(ValueError, match=text):
        Features([Feature("a", dim=2)], missing="ones")
