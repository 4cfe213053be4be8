"""Hold the parameters of a `NativeTask`."""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from monolith.native_training.util.instantiable_params import InstantiableParams
from monolith.native_training.util.params import Params


class ExportMode(enum.IntEnum):
    """Name the parts of an export."""

    NONE = 0
    STANDALONE = 1
    DISTRIBUTED = 2


_GROUPS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "input": {"eval_examples": None, "train_examples": None},
        "eval": {"per_replica_batch_size": None, "steps_per_eval": 10000, "steps": None},
        "train": {
            "steps": None,
            "max_steps": None,
            "per_replica_batch_size": None,
            "file_pattern": None,
            "repeat": False,
            "label_key": "label",
            "save_checkpoints_steps": None,
            "save_checkpoints_secs": None,
            "dense_only_save_checkpoints_secs": None,
            "dense_only_save_checkpoints_steps": None,
            "max_pending_seconds_for_barrier": 30,
            "slow_start_steps": 0,
            "sample_bias": 0.0,
            "use_gpu_emb_table": False,
            "use_fountain": False,
            "fountain_zk_host": "",
            "fountain_model_name": "",
            "fountain_parse_on_server": False,
            "fountain_precompute_value_rowids": False,
        },
        "metrics": {
            "enable_deep_insight": False,
            "deep_insight_target": "ctr_head",
            "deep_insight_name": None,
            "deep_insight_sample_ratio": 0.01,
            "extra_fields_keys": (),
            "enable_throughput_hook": True,
            "enable_kafka_metrics": False,
            "enable_file_metrics": False,
            "enable_tf2_profiler_hook": True,
            "file_base_name": "",
            "file_ext": "txt",
            "parse_fn": None,
            "key_fn": None,
            "layout_fn": None,
            "dump_filename": "",
            "use_data_service": False,
        },
        "serving": {
            "export_with_gpu_allowed": False,
            "export_with_cleared_entry_devices": False,
            "export_when_saving": False,
            "export_dir_base": "exported_models",
            "export_mode": ExportMode.DISTRIBUTED,
            "shared_embedding": True,
            "with_remote_gpu": False,
        },
    }
)

# Whoever sets one of these expects something that is not there yet.
_NOT_BUILT = (
    "accelerator",
    "mode",
    "train.save_checkpoints_steps",
    "train.save_checkpoints_secs",
    "train.dense_only_save_checkpoints_secs",
    "train.dense_only_save_checkpoints_steps",
    "train.slow_start_steps",
    "train.use_gpu_emb_table",
    "train.use_fountain",
    "metrics.enable_kafka_metrics",
    "metrics.enable_file_metrics",
    "metrics.dump_filename",
    "metrics.use_data_service",
    "serving.export_when_saving",
    "serving.with_remote_gpu",
)


def native_params(cls: type) -> InstantiableParams:
    """Parameters of a task class, with their defaults.

    Example:
        >>> class Clicks: ...
        >>> params = native_params(Clicks)
        >>> params.name, params.train.label_key
        ('Clicks', 'label')
    """
    parameters = InstantiableParams(cls)
    parameters.define("name", cls.__name__, "Name of the task.")
    parameters.define("accelerator", None, "None, 'tpu' or 'horovod'.")
    parameters.define("mode", "train", "'train', 'eval' or 'infer'.")
    for group, values in _GROUPS.items():
        inner = Params()
        for name, default in values.items():
            value = list(default) if isinstance(default, tuple) else default
            inner.define(name, value, f"Of {group}.")
        parameters.define(group, inner, f"Parameters of {group}.")
    return parameters


def check_built(params: Params) -> None:
    """Refuse parameters that ask for parts that are not built.

    Raises:
        NotImplementedError: one of them is not as it is by default.
    """
    plain = native_params(type(params))
    for name in _NOT_BUILT:
        value, default = params.get(name), plain.get(name)
        if value != default:
            raise NotImplementedError(
                f"[NativeTask] expected params.{name}={default!r}, got {value!r}; what it asks for "
                "is not built"
            )
