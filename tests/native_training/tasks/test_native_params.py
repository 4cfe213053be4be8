import re

import pytest

from monolith.native_training.tasks.native_params import PARAMETERS, ExportMode, set_by_name
from monolith.native_training.tasks.native_task import NativeTask
from monolith.native_training.util.params import Params
from tests.native_training.tasks.native_tasks import Score


def test_parameters_have_the_defaults_of_the_reference_system():
    params = NativeTask.params()
    assert (params.cls, params.name, params.mode) == (NativeTask, "NativeTask", "train")
    assert params.eval.steps_per_eval == 10000
    assert params.train.max_pending_seconds_for_barrier == 30
    assert params.metrics.deep_insight_target == "ctr_head"
    assert params.metrics.extra_fields_keys == []
    assert params.serving.export_mode == ExportMode.DISTRIBUTED == 2


def test_lists_belong_to_one_task():
    NativeTask.params().metrics.extra_fields_keys.append("x")
    assert NativeTask.params().metrics.extra_fields_keys == []


def test_parameters_make_their_task():
    assert isinstance(Score.params().instantiate(), Score)


def other_value(parameter):
    """Return a value of the parameter's type that is not its default."""
    kinds = parameter.kind if isinstance(parameter.kind, tuple) else (parameter.kind,)
    if kinds[0] is bool:
        return not parameter.default
    return {str: "other", int: 0}[kinds[0]]


@pytest.mark.parametrize("name", [name for name, p in PARAMETERS.items() if p.needs])
def test_values_that_need_a_part_that_is_not_here_are_refused_by_name(name):
    parameter = PARAMETERS[name]
    value = other_value(parameter)
    with pytest.raises(NotImplementedError) as caught:
        Score.params().set(**{name: value}).instantiate()
    assert str(caught.value) == (
        f"[NativeTask] expected params.{name}={parameter.default!r}, got {value!r} (task 'Score'); "
        f"another value needs {parameter.needs}"
    )


@pytest.mark.parametrize(
    ("name", "value", "error", "text"),
    [
        ("train.steps", "10", TypeError, "params.train.steps as int or None, got '10'"),
        ("train.repeat", 1, TypeError, "params.train.repeat as bool, got 1"),
        ("eval.steps", True, TypeError, "params.eval.steps as int or None, got True"),
        ("metrics.key_fn", 1, TypeError, "params.metrics.key_fn as a function or None, got 1"),
        ("train.max_steps", 0, ValueError, "params.train.max_steps > 0, got 0"),
        ("train.per_replica_batch_size", 0, ValueError, "train.per_replica_batch_size > 0, got 0"),
        ("train.slow_start_steps", -1, ValueError, "params.train.slow_start_steps >= 0, got -1"),
        ("metrics.deep_insight_sample_ratio", 2, ValueError, "sample_ratio in 0..1, got 2"),
        ("mode", "run", ValueError, "params.mode in train, eval, infer, got 'run'"),
    ],
)
def test_values_of_another_type_or_out_of_range_are_refused(name, value, error, text):
    with pytest.raises(error, match=re.escape(f"{text} (task 'Score')")):
        Score.params().set(**{name: value}).instantiate()


@pytest.mark.parametrize("prefix", ["", "dense_only_"])
def test_a_pace_is_in_steps_or_in_seconds(prefix):
    names = [f"{prefix}save_checkpoints_{unit}" for unit in ("secs", "steps")]
    params = Score.params().set(**{f"train.{name}": 5 for name in names})
    with pytest.raises(ValueError, match=f"^Can not provide both {names[0]} and {names[1]}.$"):
        params.instantiate()


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda p: p.trian.steps, "trian (did you mean: [train])"),
        (lambda p: p.train.setps, "setps (did you mean: [steps])"),
        (
            lambda p: p.set(**{"train.lable_key": "x"}),
            "train.lable_key (did you mean: [label_key])",
        ),
        (lambda p: p.label_key, "label_key (did you mean: [train.label_key])"),
        (lambda p: p.train.qqq, "qqq"),
        (lambda p: p.train.max_step, "max_step (did you mean: [max_steps])"),
    ],
)
def test_an_unknown_parameter_names_the_nearest(use, text):
    with pytest.raises(AttributeError) as caught:
        use(Score.params())
    assert str(caught.value) == text


def test_texts_become_values_as_the_defaults_say():
    params = Score.params()
    set_by_name(
        params,
        {"metrics.extra_fields_keys": "a, b", "train.label_key": 7, "serving.export_mode": "NONE"},
    )
    assert params.metrics.extra_fields_keys == ["a", "b"]
    assert params.train.label_key == "7"
    assert params.serving.export_mode is ExportMode.NONE


def test_an_export_mode_is_a_name_or_a_number():
    params = Score.params()
    for value, mode in ((None, ExportMode.NONE), (1, ExportMode.STANDALONE), ("odd", "odd")):
        set_by_name(params, {"serving.export_mode": value})  # the command line reads NONE as None
        assert params.serving.export_mode is mode
    with pytest.raises(NotImplementedError, match=r"serving.export_mode=<.*>, got 'odd'"):
        params.instantiate()


def test_a_group_is_no_value():
    with pytest.raises(AttributeError, match=r"^train \(did you mean: \[train.steps\]\)$"):
        set_by_name(Score.params(), {"train": 1})


def test_no_parameter_lacks_a_description():
    tree = NativeTask.params()
    names = [
        f"{group}.{name}" if isinstance(inner, Params) else group
        for group, inner in tree.items()
        for name, _ in (inner.items() if isinstance(inner, Params) else [("", None)])
    ]
    assert sorted(names) == sorted([*PARAMETERS, "cls", "name"])
