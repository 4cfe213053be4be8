import pytest

from monolith.tpu_runner import RunnerFlags


@pytest.mark.req("MN-TPU-T1")
def test_flags_have_the_defaults_of_the_reference_system():
    assert vars(RunnerFlags.parse([])) == {
        "tpu": None,
        "gcp_project": None,
        "tpu_zone": None,
        "task": None,
        "model_dir": None,
        "mode": "train",
        "save_checkpoints_steps": None,
        "iterations_per_loop": 10000,
        "pipeline_execution": False,
        "enable_tpu_version_config": True,
        "host_call_every_n_steps": 500,
        "enable_stopping_signals": False,
        "cpu_test": False,
        "partition_strategy": "mod",
        "overwrite_end_date": "",
        "tf_version": "nightly",
    }


def test_flags_are_read_by_their_types():
    line = (
        "--cpu_test --noenable_tpu_version_config --pipeline_execution=true --mode=eval "
        "--save_checkpoints_steps 7 --task=a.B --partition_strategy=div"
    )
    flags = RunnerFlags.parse(line.split())
    assert (flags.cpu_test, flags.enable_tpu_version_config) == (True, False)
    assert (flags.pipeline_execution, flags.mode) == (True, "eval")
    assert (flags.save_checkpoints_steps, flags.task) == (7, "a.B")
    assert flags.partition_strategy == "div"


@pytest.mark.req("MN-TPU-T1")
def test_an_unknown_mode_is_rejected(capsys):
    with pytest.raises(SystemExit) as error:
        RunnerFlags.parse(["--mode=predict"])
    assert error.value.code == 2
    assert "expected mode in train_and_eval, train, eval, got 'predict'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--iterations_per_loop=many", "invalid literal for int() with base 10: 'many'"),
        ("--cpu_tests", "unrecognized arguments"),
    ],
)
def test_wrong_flags_end_with_status_2(flag, text, capsys):
    with pytest.raises(SystemExit) as error:
        RunnerFlags.parse([flag])
    assert error.value.code == 2
    told = capsys.readouterr().err
    assert flag.partition("=")[0] in told
    assert text in told


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"partition_strategy": "hash"}, "expected partition_strategy in div, mod, got 'hash'"),
        ({"iterations_per_loop": 0}, "expected iterations_per_loop >= 1, got 0"),
        ({"host_call_every_n_steps": -1}, "expected host_call_every_n_steps >= 0, got -1"),
        ({"save_checkpoints_steps": 0}, "expected save_checkpoints_steps >= 1, got 0"),
    ],
)
def test_values_out_of_range_are_refused(values, text):
    with pytest.raises(ValueError, match=text):
        RunnerFlags(**values)


@pytest.mark.parametrize("name", ["gcp_project", "tpu_zone"])
def test_machines_of_a_cloud_are_refused(name):
    with pytest.raises(NotImplementedError, match=f"expected no {name}, got 'east'"):
        RunnerFlags(**{name: "east"})
