import dataclasses

import pytest

from monolith.native_training.cpu_training import CpuTrainingConfig, DistributedCpuTrainingConfig


def test_a_config_of_several_processes_has_the_fields_of_a_job():
    names = [field.name for field in dataclasses.fields(CpuTrainingConfig)]
    more = [field.name for field in dataclasses.fields(DistributedCpuTrainingConfig)]
    assert more[: len(names)] == names
    assert len(names) == 72
    assert more[len(names) :] == [
        *("model_dir", "tensorboard_log_path", "intra_op_parallelism_threads"),
        *("inter_op_parallelism_threads", "num_extra_ps", "num_redundant_ps", "uuid"),
        *("operation_timeout_in_ms", "session_creation_timeout_secs", "max_retry_times"),
        *("retry_wait_in_secs", "fountain_zk_host", "fountain_model_name", "dc_aware"),
    ]


def test_defaults_are_those_of_the_reference_system():
    config = DistributedCpuTrainingConfig()
    assert (config.server_type, config.index, config.num_ps, config.num_workers) == (
        "worker",
        0,
        0,
        1,
    )
    assert (config.filter_capacity, config.filter_split_num) == (300000000, 7)
    assert (config.chief_timeout_secs, config.checkpoints_max_to_keep) == (1800, 10)
    assert (config.operation_timeout_in_ms, config.session_creation_timeout_secs) == (-1, 7200)
    assert (config.max_retry_times, config.retry_wait_in_secs) == (0, 30)


def test_defaults_are_accepted():
    DistributedCpuTrainingConfig().check()


@pytest.mark.parametrize(
    "name",
    [f.name for f in dataclasses.fields(DistributedCpuTrainingConfig) if "needs" in f.metadata],
)
def test_a_value_that_needs_a_part_that_is_not_here_is_refused(name):
    (field,) = [f for f in dataclasses.fields(DistributedCpuTrainingConfig) if f.name == name]
    text = (
        f"[DistributedCpuTrainingConfig] expected {name}={field.default!r}, got 'other'; another "
        f"value needs {field.metadata['needs']}"
    )
    with pytest.raises(NotImplementedError) as error:
        DistributedCpuTrainingConfig(**{name: "other"}).check()
    assert str(error.value) == text


@pytest.mark.parametrize("prefix", ["", "dense_only_"])
def test_checkpoints_have_one_pace(prefix):
    paces = [f"{prefix}save_checkpoints_{unit}" for unit in ("secs", "steps")]
    CpuTrainingConfig(**{paces[0]: 1}).check()
    with pytest.raises(ValueError, match=f"^Can not provide both {paces[0]} and {paces[1]}[.]$"):
        CpuTrainingConfig(**dict.fromkeys(paces, 1)).check()


def test_tables_are_synchronous_only_if_all_is():
    assert CpuTrainingConfig(enable_sync_training=True).enable_full_sync_training
    both = {"enable_sync_training": True, "enable_partial_sync_training": True}
    assert not CpuTrainingConfig(**both).enable_full_sync_training
    assert not CpuTrainingConfig().enable_full_sync_training
