import pyarrow as pa
import pytest

from monolith.data.hashing import hash_strings
from monolith.data.operations.comparison import Comparison
from monolith.data.operations.filters import FilterByValue
from tests.data.operations.blocks import block, column

NUMBERS = column([1, 2, 3])


def ask(op, operands, array=NUMBERS, **options):
    return Comparison("[here]", op, tuple(operands))(array, **options).tolist()


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        ("gt", [2], [False, False, True]),
        ("ge", [2], [False, True, True]),
        ("eq", [2], [False, True, False]),
        ("lt", [2], [True, False, False]),
        ("le", [2], [True, True, False]),
        ("neq", [2], [True, False, True]),
        ("between", [1, 3], [True, True, False]),
        ("in", [3, 1, 9], [True, False, True]),
        ("not-in", [3, 1, 9], [False, True, False]),
    ],
)
def test_ops_on_single_values(op, operands, expected):
    assert ask(op, operands) == expected


def test_between_of_the_reference_is_half_open():
    assert ask("between", [0, 1], column([1])) == [False]
    assert ask("between", [1, 2], column([1])) == [True]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("any", [True, True, False, False]),
        ("all", [True, False, False, False]),
        ("diff", [False, False, True, False]),
    ],
)
def test_set_ops_need_no_order(op, expected):
    lists = column([[9, 3, 1], [3, 3], [2], []])
    assert ask(op, [3, 1], lists) == expected


@pytest.mark.parametrize("op", ["any", "all", "diff"])
def test_an_empty_set_is_kept_where_asked(op):
    assert ask(op, [3], column([[], [3]]), keep_empty=True)[0]


def test_single_ids_are_sets_of_one():
    assert ask("any", [3, 1]) == [True, False, True]


def test_lists_of_one_value_count_as_it():
    lists = column([[1], [], [2, 3], [3]])
    assert ask("ge", [2], lists) == [False, False, False, True]
    assert ask("ge", [2], lists, keep_empty=True) == [False, True, True, True]


def test_floats_are_compared_in_their_own_precision():
    assert ask("eq", [0.1], column([0.1, 0.2])) == [True, False]
    assert ask("gt", [0.1], pa.array([[0.1], [0.2]], pa.list_(pa.float32(), 1))) == [False, True]


def test_unsigned_fids_are_read_as_int64():
    assert ask("in", [2**64 - 1], column([-1, 1])) == [True, False]


def test_strings_are_compared_by_their_letters():
    words = pa.array(["ab", "b", "cab"])
    assert ask("lt", ["b"], words) == [True, False, False]
    assert ask("startswith", ["a", "c"], words) == [True, False, True]
    assert ask("endswith", ["ab"], words) == [True, False, True]
    assert ask("in", ["b", "x"], words) == [False, True, False]


@pytest.mark.parametrize(("op", "expected"), [("eq", True), ("in", True), ("not-in", False)])
def test_strings_are_hashed_for_a_column_of_hashes(op, expected):
    hashed = pa.array(hash_strings(pa.array(["ios", "android"])))
    assert ask(op, ["ios"], hashed)[0] is expected


def test_an_unknown_op_is_refused():
    with pytest.raises(ValueError, match=r"\[here\] expected an op of gt ge eq .*, got 'like'"):
        ask("like", [1])


@pytest.mark.parametrize(("op", "operands", "text"), [("gt", [1, 2], "1"), ("between", [1], "2")])
def test_another_number_of_operands_is_refused(op, operands, text):
    with pytest.raises(ValueError, match=rf"expected {text} operands? of '{op}', got"):
        ask(op, operands)


@pytest.mark.parametrize(
    ("op", "operands", "array"),
    [("gt", ["a"], NUMBERS), ("in", [0.5], NUMBERS), ("eq", [1], pa.array(["a"]))],
)
def test_operands_of_another_type_are_refused(op, operands, array):
    text = r"\[here\] Filter values' type should be the same with field type\. Got .* column of"
    with pytest.raises(ValueError, match=text):
        ask(op, operands, array)


def test_text_ops_need_strings():
    with pytest.raises(TypeError, match=r"expected a column of strings for 'startswith', got type"):
        ask("startswith", ["a"])


def test_set_ops_need_ids():
    with pytest.raises(TypeError, match=r"expected column 'values' of ids, got type float"):
        ask("any", [1], column([1.0]))


def test_operands_of_a_file(tmp_path):
    path = tmp_path / "ids"
    path.write_text("3\n\n1\n")
    keeps = FilterByValue("x", "in", operand_filepath=str(path))
    assert keeps(block(x=[1, 2, 3])).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [("3\nword\n", "expected JSON on each line"), ("[3]", r"a number or a string .* got \[3\]")],
)
def test_a_file_of_something_else_is_refused(tmp_path, text, message):
    path = tmp_path / "ids"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        FilterByValue("x", "in", operand_filepath=str(path))
