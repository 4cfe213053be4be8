import enum
import json
from dataclasses import dataclass, field
from typing import Literal

import pytest

from monolith.util import layered_settings as settings
from monolith.util.layered_settings import Setting, convert_value, resolve


class Mode(enum.Enum):
    TRAIN = "train"
    EVAL = 2


@dataclass(frozen=True)
class Train:
    steps: int = 1000
    learning_rate: float = 0.1
    is_async: bool = False


@dataclass
class Settings:
    name: str
    train: Train
    tuned: Train = Train(steps=7)
    data: dict[str, str] = field(default_factory=lambda: {"train": "logs/"})
    widths: list[int] = field(default_factory=list)
    span: tuple[int, float] = (1, 0.5)
    names: tuple[str, ...] = ()
    seed: int | None = None
    mode: Mode = Mode.TRAIN
    level: Literal["low", 2] = "low"
    made: int = field(default=0, init=False)


def resolved(*flags, **places):
    return resolve(Settings, flags=["name=x", *flags], **places).value


def refusal(*flags, **places):
    with pytest.raises(ValueError, match=r"^\[settings\] expected ") as caught:
        resolved(*flags, **places)
    return str(caught.value).removeprefix("[settings] expected ")


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_defaults_stay_where_nothing_is_set():
    assert resolved() == Settings("x", Train())


def test_a_default_object_of_a_section_gives_its_values():
    assert resolved("tuned.is_async=1").tuned == Train(steps=7, is_async=True)


def test_a_flag_wins_over_a_variable_and_that_over_a_file(tmp_path):
    path = written(
        tmp_path,
        "s.json",
        json.dumps({"train": {"steps": 1, "learning_rate": 1, "is_async": True}}),
    )
    environment = {"MONOLITH_SET_TRAIN__STEPS": "2", "MONOLITH_SET_TRAIN__LEARNING_RATE": "2.5"}
    result = resolve(
        Settings, file=path, environment=environment, flags=["train.steps=3", "name=x"]
    )
    assert result.value.train == Train(3, 2.5, True)
    assert {key: origin for key, (_, origin) in result.settings.items() if "train." in key} == {
        "train.steps": "--set",
        "train.learning_rate": "environment MONOLITH_SET_TRAIN__LEARNING_RATE",
        "train.is_async": f"file {path}",
    }


def test_the_last_of_two_equal_flags_counts():
    assert resolved("train.steps=1", "train.steps=2").train.steps == 2


def test_every_key_has_a_value_and_an_origin():
    result = resolve(Settings, flags=["name=x"])
    assert result.settings["name"] == Setting("x", "--set")
    assert result.settings["data.train"] == Setting("logs/", "default")
    assert list(result.settings)[:3] == ["name", "train.steps", "train.learning_rate"]
    assert result.lines()[0] == "name = 'x'  (--set)"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("train.steps=1_000", 1000),
        ("train.steps=-5", -5),
        ("train.learning_rate=1e-3", 0.001),
        ("train.is_async=True", True),
        ("train.is_async=0", False),
        ("name=a=b", "a=b"),
        ("name=", ""),
        ("widths=1, 2,3", [1, 2, 3]),
        ("widths=", []),
        ("names=a,b", ("a", "b")),
        ("span=3,4", (3, 4.0)),
        ("seed=7", 7),
        ("seed=none", None),
        ("mode=EVAL", Mode.EVAL),
        ("mode=train", Mode.TRAIN),
        ("mode=2", Mode.EVAL),
        ("level=2", 2),
    ],
)
def test_text_becomes_the_type_of_its_key(flag, value):
    result = resolved(flag)
    for name in flag.split("=")[0].split("."):
        result = getattr(result, name)
    assert (result, type(result)) == (value, type(value))


def test_any_name_below_a_dict_is_a_key():
    assert resolved("data.train=a", "data.eval=b").data == {"train": "a", "eval": "b"}


def test_a_toml_file_has_sections_and_types(tmp_path):
    text = """
    widths = [1, 2]
    seed = "none"
    mode = "EVAL"
    [train]
    steps = 5
    [data]
    eval = "days/"
    """
    if settings.sys.version_info < (3, 11):
        pytest.skip("tomllib came with Python 3.11")
    result = resolved(file=written(tmp_path, "s.toml", text))
    assert (result.widths, result.seed, result.mode) == ([1, 2], None, Mode.EVAL)
    assert (result.train.steps, result.data["eval"]) == (5, "days/")


def test_null_in_a_json_file_is_none(tmp_path):
    path = written(tmp_path, "s.json", '{"seed": null}')
    assert resolve(Settings, file=path, flags=["name=x"]).settings["seed"].origin == f"file {path}"


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        (
            "train.lerning_rate=1",
            "'train.lerning_rate' (--set); did you mean 'train.learning_rate'",
        ),
        ("train.step=1", "'train.step' (--set); did you mean 'train.steps'?"),
        ("zzzzzz=1", "'zzzzzz' (--set); known are name, train.steps, "),
        ("made=1", "'made' (--set); "),
        ("name.x=1", "'name.x' (--set); "),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(flag, text):
    assert f"a known key, got {text}" in refusal(flag)


@pytest.mark.parametrize(("flag", "below"), [("train=1", "train.steps"), ("data=1", "data.NAME")])
def test_a_section_is_no_key(flag, below):
    name = flag[:-2]
    text = f"a key below {name!r}, such as {below!r}, got {name!r} (--set)"
    assert refusal(flag) == text


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("train.steps=1.5", "'train.steps' as int, got '1.5' (--set)"),
        ("train.is_async=yes", "'train.is_async' as true or false, got 'yes' (--set)"),
        ("train.learning_rate=fast", "'train.learning_rate' as float, got 'fast' (--set)"),
        ("widths=1,b", "'widths' as a list of int, got '1,b' (--set)"),
        ("span=1,2,3", "'span' as a list of int, float, got '1,2,3' (--set)"),
        ("seed=x", "'seed' as int, or none, got 'x' (--set)"),
        ("mode=test", "'mode' as one of 'TRAIN', 'EVAL', got 'test' (--set)"),
        ("level=high", "'level' as one of 'low', 2, got 'high' (--set)"),
    ],
)
def test_a_wrong_value_is_refused_by_key_type_and_origin(flag, text):
    assert refusal(flag) == text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"train": {"steps": "5"}}, "'train.steps' as int, got '5'"),
        ({"train": {"steps": True}}, "'train.steps' as int, got True"),
        ({"train": {"learning_rate": False}}, "'train.learning_rate' as float, got False"),
        ({"train": 5}, "a key below 'train', such as 'train.steps', got 'train'"),
        ({"widths": "1,2"}, "'widths' as a list of int, got '1,2'"),
        ({"data": {"train": 1}}, "'data.train' as str, got 1"),
        ({"seed": {"a": 1}}, "'seed' as int, or none, got {'a': 1}"),
        ({"trian": {}}, "a known key, got 'trian'"),
    ],
)
def test_a_wrong_value_of_a_file_is_refused(tmp_path, content, text):
    path = written(tmp_path, "s.json", json.dumps(content))
    assert refusal(file=path).startswith(f"{text} (file {path})")


def test_a_flag_without_a_value_is_refused():
    assert refusal("train.steps") == "key=value, got 'train.steps' (--set)"


def test_a_wrong_variable_is_refused_by_its_name():
    text = refusal(environment={"MONOLITH_SET_TRAIN__STEP": "2", "OTHER": "3"})
    assert "got 'train.step' (environment MONOLITH_SET_TRAIN__STEP)" in text


def test_required_keys_without_a_value_are_named():
    @dataclass
    class Required:
        path: str
        data: dict[str, str]

    with pytest.raises(ValueError, match=r"a value of 'path', 'data', got none; give --set path="):
        resolve(Required)
    with pytest.raises(ValueError, match=r"give --set data.NAME=..., MONOLITH_SET_DATA__NAME or"):
        resolve(Required, flags=["path=x"])


def test_a_type_that_has_no_text_is_refused():
    @dataclass
    class Unknown:
        point: complex = 0j

    with pytest.raises(TypeError, match=r"expected 'point' as int, .* got <class 'complex'>"):
        resolve(Unknown)


def test_a_file_of_another_kind_is_refused():
    assert refusal(file="s.yaml") == "a .toml or .json file, got 's.yaml'"


def test_a_file_that_is_not_there_is_told():
    with pytest.raises(FileNotFoundError, match=r"\[settings\] expected a file, got none at 's.js"):
        resolved(file="s.json")


@pytest.mark.parametrize("name", ["s.json", "s.toml"])
def test_a_damaged_file_is_refused_by_its_name(tmp_path, name):
    if settings.sys.version_info < (3, 11):
        pytest.skip("tomllib came with Python 3.11")
    path = written(tmp_path, name, "{ = ")
    text = refusal(file=path)
    assert text.startswith(f"{name[2:].upper()}, got: ")
    assert text.endswith(f"({path})")


def test_a_file_without_keys_is_refused(tmp_path):
    path = written(tmp_path, "s.json", "[1]")
    assert refusal(file=path) == f"keys and values, got [1] ({path})"


def test_toml_on_an_old_python_is_refused(monkeypatch):
    monkeypatch.setattr(settings.sys, "version_info", (3, 10, 4))
    assert "Python 3.11 or later for .toml files, got 's.toml'" in refusal(file="s.toml")


@pytest.mark.parametrize(
    ("text", "expected"), [("2", 2), ("auto", "auto"), ("none", None), ("2.5", "2.5")]
)
def test_a_value_is_of_the_first_of_several_types_that_takes_it(text, expected):
    found = convert_value(int | str | None, text, is_text=True)
    assert found == expected
    assert type(found) is type(expected)
