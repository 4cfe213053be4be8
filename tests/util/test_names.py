import pytest

from monolith.util import names
from monolith.util.names import UniqueNames, to_snake_case


@pytest.mark.req("NT-UTIL-T2")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("FooBar", "foo_bar"),
        ("_Foo", "private__foo"),
        ("HTTPServer", "http_server"),
        ("fooBAR", "foo_bar"),
        ("Conv2DLayer", "conv2d_layer"),
        ("already_snake", "already_snake"),
        ("_x", "private_x"),
        ("", ""),
    ],
)
def test_camel_case_becomes_snake_case(name, expected):
    assert to_snake_case(name) == expected


@pytest.mark.req("NT-UTIL-T5")
@pytest.mark.parametrize("model_dir", ["memory://a/b", "memory://a/b/"])
def test_files_for_debugging_lie_in_the_model_directory(model_dir):
    assert names.debugging_info_path(model_dir) == "memory://a/b/debugging_info.pb"
    assert names.module_tree_path(model_dir) == "memory://a/b/meta_graph_for_debugging.pb"


def test_a_taken_name_gets_the_next_free_number():
    taken = UniqueNames()
    asked = ["a", "a", "a_2", "a", "a_1"]
    assert [taken.take(name) for name in asked] == ["a", "a_1", "a_2", "a_3", "a_1_1"]
