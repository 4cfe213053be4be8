import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from monolith.launch.manifests import yaml_text

ODD = (
    *("", "no", "Null", "1", "1e3", "0x1f", "12:30", "- x", "--", "---", "a: b", "a #b", "@x"),
    *("x\n", " x\n", "x\n\n", "x\r\n", "a\n  b\n", "a\tb\n", "{}", "4Gi", "y", "=", "~", "%x"),
    *("x = 1\n# y: z\n\nprint('a')\n", "\ud7ff\U0001f600", "\x85", "\u2028\n", "2026-01-01"),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(ODD)
VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(TEXTS, each, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=3), min_size=1, max_size=2))
def test_readers_of_yaml_get_the_documents_back(documents):
    assert list(yaml.safe_load_all(yaml_text(documents))) == documents


def test_texts_are_plain_where_a_reader_takes_them_as_they_are():
    document = {"a": "--set", "b": "yes", "c": "4Gi", "d": "10", "e": "r/i:1", "f": "a b", "g": 1}
    assert yaml_text([document]) == (
        'a: --set\nb: "yes"\nc: 4Gi\nd: "10"\ne: r/i:1\nf: "a b"\ng: 1\n'
    )


def test_a_file_is_a_block():
    assert yaml_text([{"f.py": "x = 1\n\ny = 'a: b'\n"}]) == "f.py: |\n  x = 1\n\n  y = 'a: b'\n"


def test_documents_are_divided():
    assert yaml_text([{"a": []}, {"b": {}}]) == "a: []\n---\nb: {}\n"


@pytest.mark.parametrize("value", [None, 0.5, b"x"])
def test_another_type_is_refused(value):
    with pytest.raises(TypeError, match="expected a text, an integer or a boolean, got"):
        yaml_text([{"a": value}])
