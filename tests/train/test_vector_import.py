import pytest
import torch

from monolith.checkpoint.vectors.vector_chunk import VectorChunk
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError
from monolith.nn import Feature
from monolith.table import Segment
from monolith.train.imported_rows import import_vectors, open_target
from tests.train.tasks import Clicks

KEYS = torch.tensor([3, 4, 5])


FEATURES = (
    Feature("plain", dim=4),
    Feature("bias", dim=4, bias=True),
    Feature("parts", slices=[Segment(1, name="a"), Segment(3, name="b", precision="fp16")]),
    Feature("shared", shares="plain", combiner="mean"),
)


class Vectors:
    """Rows of a matrix in a source of vectors."""

    where = "v.parquet"

    def __init__(self, matrix, keys=KEYS):
        self.num_rows, self.dim = matrix.shape
        self.num_keys, self._matrix, self._keys = len(keys), matrix, keys

    def chunks(self, chunk_rows):
        yield VectorChunk(self._keys, self._matrix, None, self.where, 10)


@pytest.fixture
def target(tmp_path):
    class Sliced(Clicks):
        features = FEATURES

    with open_target(Sliced(), tmp_path / "new") as target:
        yield target


@pytest.mark.parametrize(
    ("feature", "table", "dim"),
    [("plain", "plain", 4), ("shared", "plain", 4), ("parts", "parts", 4), ("bias", "bias", 5)],
)
def test_a_vector_has_the_weights_of_all_slices(target, feature, table, dim):
    matrix, counts = torch.arange(3.0 * dim).reshape(3, dim), []
    import_vectors(target, feature, Vectors(matrix), counts.append)
    assert torch.equal(target.table(table).lookup(KEYS), matrix)
    assert counts == [3]


def test_a_bias_that_is_left_out_is_zero(target):
    import_vectors(target, "bias", Vectors(torch.ones(3, 4)))
    expected = torch.tensor([[0.0, 1.0, 1.0, 1.0, 1.0]] * 3)
    assert torch.equal(target.table("bias").lookup(KEYS), expected)


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ("shared", "vectors of 4 numbers, as table 'plain' has, got vectors of 3 .v.parquet.$"),
        ("bias", "of 4, or 5 with the bias first, numbers, .*got vectors of 3 .*slices are bias 1"),
        ("parts", "vectors of 4 numbers, as table 'parts' has, .*; its slices are a 1, b 3"),
    ],
)
def test_vectors_of_another_size_are_refused(target, feature, message):
    with pytest.raises(InvalidArgumentError, match=message):
        import_vectors(target, feature, Vectors(torch.ones(3, 3)))


@pytest.mark.parametrize(("value", "text"), [(float("nan"), "nan"), (-float("inf"), "-inf")])
def test_a_number_that_is_not_finite_is_named_with_its_key(target, value, text):
    matrix = torch.ones(3, 4)
    matrix[1, 2] = value
    with pytest.raises(DataLossError, match=f"got {text} in row 11 with key 4 of v.parquet"):
        import_vectors(target, "plain", Vectors(matrix))


def test_an_unknown_feature_and_a_source_without_vectors_are_refused(target):
    with pytest.raises(NotFoundError, match="did you mean 'plain'"):
        import_vectors(target, "plane", Vectors(torch.ones(3, 4)))
    with pytest.raises(InvalidArgumentError, match=r"expected vectors, got none \(v.parquet\)"):
        import_vectors(target, "plain", Vectors(torch.empty(0, 4), KEYS[:0]))
