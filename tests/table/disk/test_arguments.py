"""Arguments of save and load that are refused, and differences between configs."""

from dataclasses import replace

import pytest

from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.table import Budget, Expiry, MinCount, Segment, Table, TableConfig
from monolith.table.disk import load_table, load_tables, restore_tables, save_tables
from monolith.table.optimizers import SGD, Adagrad, PolynomialDecay
from tests.table.disk.cases import CONFIG, assert_same_table, filled, make, plain, saved

WIDE = Segment(5, Adagrad(0.5), name="wide", precision="bf16")
TWO = replace(CONFIG, segments=[Segment(3, SGD(0.5)), Segment(5, Adagrad(0.5))])


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((7,), {}, "[save_tables] expected tables, got int"),
        (([7],), {}, "[save_tables] expected tables, got int"),
        (([],), {}, "[save_tables] expected tables of different names, got []"),
        ((None,), {"num_threads": 0}, "[save_tables] expected num_threads >= 1, got 0"),
        (
            (None,),
            {"num_threads": 1.5},
            "[save_tables] expected num_threads as an integer, got 1.5",
        ),
        (
            (None,),
            {"max_bytes_per_second": 0},
            "[save_tables] expected max_bytes_per_second > 0, got 0",
        ),
        (
            (None,),
            {"max_bytes_per_second": "x"},
            "[save_tables] expected max_bytes_per_second as a number, got 'x'",
        ),
        ((None,), {"progress": 3}, "[save_tables] expected progress as a function, got 3"),
        (
            (None,),
            {"partitions": [4096]},
            "[save_tables] expected partitions in [0, 4096), got 4096",
        ),
    ],
)
def test_a_save_refuses(tmp_path, arguments, options, text):
    tables = [filled(3) if each is None else each for each in arguments]
    with pytest.raises((TypeError, ValueError)) as caught:
        save_tables(*tables, tmp_path / "x", **options)
    assert str(caught.value) == text
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("path", [None, 7, b"bytes"])
def test_a_save_refuses_what_is_no_path(path):
    with pytest.raises(TypeError) as caught:
        save_tables(filled(3), path)
    assert str(caught.value) == f"[save_tables] expected path as a str or a PathLike, got {path!r}"


@pytest.mark.parametrize(
    ("path", "options", "text"),
    [
        (None, {}, "expected path as a sequence, got None"),
        ([None], {}, "expected path as a str or a PathLike, got None"),
        ([], {}, "expected path as one folder or more, got []"),
        ("", {"names": "user"}, "expected names as a sequence of str, got 'user'"),
        ("", {"names": [7]}, "expected names as a sequence of str, got [7]"),
        ("", {"names": 7}, "expected names as a sequence, got 7"),
        ("", {"progress": 3}, "expected progress as a function, got 3"),
    ],
)
def test_a_load_of_tables_refuses(path, options, text):
    with pytest.raises((TypeError, ValueError)) as caught:
        load_tables(path, **options)
    assert str(caught.value) == f"[load_tables] {text}"


@pytest.mark.parametrize(
    ("path", "options", "text"),
    [
        ([], {}, "expected path as one folder or more, got []"),
        ("", {"progress": 3}, "expected progress as a function, got 3"),
        ("nowhere", {}, "expected a file, got none at nowhere/manifest.json"),
        ("nowhere", {"num_threads": 0}, "expected num_threads >= 1, got 0"),
    ],
)
def test_errors_of_a_restore_have_its_name(path, options, text):
    with pytest.raises((TypeError, ValueError, NotFoundError)) as caught:
        restore_tables(make(), path, **options)
    assert str(caught.value) == f"[restore_tables] {text}"


def test_a_restore_refuses_what_is_no_table(tmp_path):
    with pytest.raises(TypeError, match=r"\[restore_tables\] expected tables, got int"):
        restore_tables([7], tmp_path)


def test_two_tables_of_one_name_are_refused(tmp_path):
    text = r"\[{}\] expected tables of different names, got \['user', 'user'\]"
    tables = [make(), make()]
    with pytest.raises(ValueError, match=text.format("save_tables")):
        save_tables(tables, tmp_path)
    with pytest.raises(ValueError, match=text.format("restore_tables")):
        restore_tables(tables, tmp_path)


def test_a_closed_table_is_refused(tmp_path):
    table = filled(3)
    table.close()
    with pytest.raises(FailedPreconditionError, match="expected an open table, got a closed one"):
        save_tables(table, tmp_path)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_threads": 0}, ValueError, "[load_tables] expected num_threads >= 1, got 0"),
        (
            {"partitions": [-1]},
            ValueError,
            "[load_tables] expected partitions in [0, 4096), got -1",
        ),
        ({"partitions": ["x"]}, TypeError, "[load_tables] expected a partition as an integer, got"),
        ({"name": "item"}, NotFoundError, "[load_tables] expected table 'item' in "),
    ],
)
def test_a_load_refuses(tmp_path, options, error, text):
    saved(tmp_path)
    with pytest.raises(error) as caught:
        load_table(tmp_path, **options)
    assert str(caught.value).startswith(text)


def test_partitions_and_paths_may_be_iterators(tmp_path):
    table = filled()
    save_tables(table, tmp_path, partitions=iter(range(4096)))
    loaded = load_table(iter([tmp_path]), partitions=iter(range(4096)))
    assert_same_table(loaded, table)


def test_one_of_several_tables_needs_its_name(tmp_path):
    saved(tmp_path, filled(3, plain(name="a")), filled(4, plain(name="b")))
    text = r"\[load_table\] expected a name, one of the tables \['a', 'b'\], got None"
    with pytest.raises(ValueError, match=text):
        load_table(tmp_path)
    assert len(load_table(tmp_path, name="b")) == len(filled(4, plain()))


def test_a_table_that_the_save_does_not_have_is_refused(tmp_path):
    saved(tmp_path)
    with pytest.raises(NotFoundError) as caught:
        restore_tables(make(plain(name="item")), tmp_path)
    text = f"expected table 'item' in {tmp_path}, got tables ['user']"
    assert str(caught.value) == f"[restore_tables] {text}"


def test_partitions_that_the_saves_do_not_have_are_refused(tmp_path):
    save_tables(filled(), tmp_path, partitions=range(10, 20))
    text = (
        f"[load_tables] expected the wanted partitions of table 'user' in {tmp_path}, "
        "got none of 5-9,20"
    )
    with pytest.raises(NotFoundError) as caught:
        load_table(tmp_path, partitions=range(5, 21))
    assert str(caught.value) == text


def test_partitions_that_two_saves_have_are_refused(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path, part in zip(paths, [range(11), range(10, 12)], strict=True):
        save_tables(filled(), path, partitions=part)
    with pytest.raises(InvalidArgumentError) as caught:
        load_table(paths)
    assert str(caught.value) == (
        "[load_tables] expected each partition of table 'user' once, got 10 more often "
        f"(in {paths[0]}, {paths[1]})"
    )


def test_saves_of_different_configs_are_not_mixed(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    save_tables(filled(), paths[0], partitions=[0])
    save_tables(filled(9, replace(CONFIG, seed=3)), paths[1], partitions=[1])
    with pytest.raises(InvalidArgumentError, match=r"expected seed \d+ as in .*, got 3"):
        load_tables(paths)


@pytest.mark.parametrize(
    ("config", "field", "expected", "got"),
    [
        (replace(CONFIG, seed=5), "seed", CONFIG.seed, 5),
        (replace(CONFIG, expiry=None), "expiry", "Expiry", None),
        (replace(CONFIG, expiry=Expiry(31)), "expiry.days", 30, 31),
        (replace(CONFIG, expiry=Expiry(30, {4: 1})), "expiry.slots.4", None, 1),
        (replace(CONFIG, admission=MinCount(2)), "admission.threshold", 1, 2),
        (replace(CONFIG, non_finite="skip"), "non_finite", "refuse", "skip"),
        (TWO, "segments[1].name", "wide", None),
        (replace(CONFIG, segments=Segment(8)), "segments", "2 of them", "1 of them"),
        (
            replace(CONFIG, segments=[Segment(3, Adagrad(0.5)), WIDE]),
            "segments[0].optimizer",
            "SGD",
            "Adagrad",
        ),
    ],
)
def test_a_different_config_is_refused_by_its_field(tmp_path, config, field, expected, got):
    saved(tmp_path)
    table = filled(5, config)
    with pytest.raises(InvalidArgumentError) as caught:
        restore_tables(table, tmp_path)
    assert str(caught.value) == (
        f"[restore_tables] expected {field} {expected!r} as in {tmp_path}, got {got!r} "
        "(table 'user')"
    )
    assert len(table) == len(filled(5, config))


def test_learning_rates_and_the_budget_may_differ(tmp_path):
    table = filled(50)
    save_tables(table, tmp_path)
    segments = [Segment(3, SGD(PolynomialDecay(1, 9))), WIDE]
    target = Table(replace(CONFIG, segments=segments, budget=Budget(1 << 30)))
    restore_tables(target, tmp_path)
    assert_same_table(target, table)


def test_a_schedule_that_is_a_function_needs_a_table_of_its_own(tmp_path):
    config = TableConfig("user", Segment(2, SGD(lambda step: 0.1 / (1 + step))))
    table = filled(5, config)
    save_tables(table, tmp_path)
    text = (
        "[load_tables] expected a learning rate that can be read back, got the function "
        "'test_a_schedule_that_is_a_function_needs_a_table_of_its_own.<locals>.<lambda>'; "
        "make the table yourself and use restore_tables"
    )
    with pytest.raises(InvalidArgumentError) as caught:
        load_table(tmp_path)
    assert str(caught.value) == text
    target = Table(config)
    restore_tables(target, tmp_path)
    assert_same_table(target, table)


def test_a_schedule_of_this_package_is_read_back(tmp_path):
    config = TableConfig("user", Segment(2, SGD(PolynomialDecay(0.5, 10))))
    save_tables(filled(5, config), tmp_path)
    assert load_table(tmp_path).config == config


def test_the_largest_time_must_be_a_time():
    table = make()
    with pytest.raises(
        ValueError, match=r"\[Table.latest_time\] expected now in \[0, 4294967295\]"
    ):
        table.latest_time = -1
