import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from monolith.native_training import utils
from monolith.native_training.util.run_registry import (
    add_to_collections,
    check_ops_dependence,
    get_collection,
    unique_name,
)
from monolith.train.driver import Run


@pytest.fixture(autouse=True)
def run():
    with Run().as_current() as run:
        yield run


@pytest.mark.req("TS-UTIL-T3")
@pytest.mark.parametrize(
    ("values", "last"),
    [
        ((1, 2), 2),
        (("str", None), "str"),
        ((True,), True),
        (([1, 2, 3], [4, 5, 6]), [4, 5, 6]),
        ((None, ["hello", "world"]), ["hello", "world"]),
        (([], [False]), [False]),
    ],
)
def test_the_last_value_that_counts_is_the_last_entry(values, last):
    for value in values:
        add_to_collections("name", value)
    assert get_collection("name")[-1] == last


@pytest.mark.req("TS-UTIL-T3")
@pytest.mark.parametrize("name", ["name", "other"])
def test_collections_of_another_test_are_not_seen(name):
    assert get_collection("name") is None
    add_to_collections("name", 1)
    assert get_collection(name) == {"name": [1]}.get(name)


@pytest.mark.parametrize("value", [0, False, "", 0.0])
def test_scalars_are_added_also_if_they_are_false(value):
    add_to_collections(["a", "b"], value)
    assert get_collection("a") == get_collection("b") == [value]


@pytest.mark.parametrize("value", [None, [], {}, ()])
def test_other_false_values_are_skipped_and_logged(value, caplog):
    with caplog.at_level(logging.INFO):
        add_to_collections("name", value)
    assert get_collection("name") is None
    assert caplog.messages == [f"value is {value}, skip"]


def test_a_tensor_that_counts_is_added_itself():
    tensor = torch.ones(1)
    add_to_collections("name", tensor)
    assert get_collection("name")[0] is tensor


@pytest.mark.parametrize("scalar", [5, 0, "x"])
def test_a_scalar_of_the_metadata_is_returned_as_it_is(run, scalar):
    run.metadata["name"] = scalar
    assert get_collection("name") == scalar


def test_other_metadata_is_no_collection(run):
    run.metadata["name"] = [1]
    assert get_collection("name") is None


def test_the_list_that_is_returned_is_a_copy():
    add_to_collections("name", 1)
    get_collection("name").append(2)
    assert get_collection("name") == [1]


@pytest.fixture
def actions(run):
    run.action("add", print)
    run.action("t1", print, needs=["add"])
    run.action("t2", print, needs=["add"])


@pytest.mark.req("TS-UTIL-T2")
def test_an_action_that_is_needed_raises(actions):
    with pytest.raises(Exception, match="run twice") as caught:
        check_ops_dependence("t1", "add")
    assert type(caught.value) is Exception
    assert str(caught.value) == (
        "Checking ops dependence, the ops [t1] depend on ops [add], "
        "which may cause ops [add] to be run twice."
    )


@pytest.mark.req("TS-UTIL-T2")
def test_actions_that_need_the_same_do_not_need_each_other(actions):
    check_ops_dependence("t1", "t2")
    check_ops_dependence(["add"], ["t1", "t2"])


def test_only_what_is_needed_of_a_group_is_named(actions):
    with pytest.raises(Exception, match=r"the ops \[t1, add\] depend on ops \[add\], which"):
        check_ops_dependence(["t1", "add"], ["t2", "add"])


@pytest.mark.parametrize(
    "function", [add_to_collections, check_ops_dependence, get_collection], ids=lambda f: f.__name__
)
def test_the_import_path_of_the_reference_system_has_the_function(function):
    assert getattr(utils, function.__name__) is function


def test_names_are_unique_within_their_run_only():
    with Run().as_current():
        assert [unique_name("a"), unique_name("a")] == ["a", "a_1"]
        with Run().as_current():
            assert unique_name("a") == "a"
        assert unique_name("a") == "a_2"


def test_outside_of_all_runs_each_thread_has_its_own_names():
    def take_two():
        return unique_name("a"), unique_name("a")

    for _ in range(2):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(take_two).result() == ("a", "a_1")
