import pytest

from monolith.checkpoint.text_format import Field, format_message, parse_message
from monolith.errors import DataLossError

SCHEMA = {
    "path": Field(str, is_repeated=True),
    "time": Field(float),
    "step": Field(int),
    "kind": Field(("NONE", "SOME")),
}


def test_fields_are_written_in_the_order_of_the_schema():
    text = format_message(SCHEMA, {"kind": 1, "step": -3, "time": 2, "path": ["a", "b"]})
    assert text == 'path: "a"\npath: "b"\ntime: 2.0\nstep: -3\nkind: SOME\n'


def test_what_is_none_or_empty_has_no_line():
    assert format_message(SCHEMA, {"path": [], "step": None}) == ""


@pytest.mark.parametrize("text", ['a "b" \\ \n\t\r', "päth/日本", "\x00\x7f", "it's"])
def test_any_string_comes_back(text):
    assert parse_message(SCHEMA, format_message(SCHEMA, {"path": [text]})) == {"path": [text]}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("step: 7, time: 1e3;", {"step": 7, "time": 1000.0}),
        ("# note\nstep: 1 step: 2", {"step": 2}),
        ("path: 'a' \"b\" path: 'c'", {"path": ["ab", "c"]}),
        ('path: ["a", "b"]', {"path": ["a", "b"]}),
        (r'path: "\x41\102\n"', {"path": ["AB\n"]}),
        ("kind: 1", {"kind": 1}),
        ("kind: SOME", {"kind": 1}),
        ("", {}),
    ],
)
def test_forms_of_the_text_format(text, values):
    assert parse_message(SCHEMA, text) == values


@pytest.mark.parametrize(
    "text", ["new: 5", "new { a: 1 b < c: 'x' > }", "new: { path: 'x' }", "new: [1, 2]"]
)
def test_unknown_fields_are_skipped(text):
    assert parse_message(SCHEMA, f"{text} step: 3") == {"step": 3}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\x01\x02", "at character 0"),
        ("step", "'the end' in place of ':' after 'step'"),
        ("step 3", "'3' in place of ':' after 'step'"),
        ("step: 'x'", "as the value of 'step'"),
        ("path: 3", "as the value of 'path'"),
        ("step: }", "'}' as the value of 'step'"),
        ("step: 1.5", "invalid literal for int"),
        ("kind: OTHER", "not in tuple"),
        ("path { a: 1 }", "a message as the value of 'path'"),
        (": 3", "':' in place of a field's name"),
        ("new { a: 1", "'the end' in place of a field's name"),
        ('path: "\\377"', "can't decode byte"),
    ],
)
def test_garbage_is_refused(text, problem):
    with pytest.raises(DataLossError, match=r"\[parse_message\] expected a text message, got") as e:
        parse_message(SCHEMA, text)
    assert problem in str(e.value)
