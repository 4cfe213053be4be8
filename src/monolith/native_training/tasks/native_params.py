"""Define the parameters of a `NativeTask`: what each does, or what it needs that is not here."""

import difflib
import enum
import os
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, NoneType
from typing import Any, NamedTuple

from monolith.native_training.util.instantiable_params import InstantiableParams
from monolith.native_training.util.params import Params


class ExportMode(enum.IntEnum):
    """Name the parts of an export."""

    NONE = 0
    STANDALONE = 1
    DISTRIBUTED = 2


class Parameter(NamedTuple):
    """Describe a parameter.

    Attributes:
        default: value unless set.
        kind: type, or types, of the value.
        meaning: what the parameter does; a refused one has none.
        needs: the part that another value needs and that does not exist here; such a value is
            refused when the task is made.
    """

    default: Any
    kind: type | tuple[type, ...]
    meaning: str = ""
    needs: str = ""


_NUMBER: tuple[type, ...] = (int, NoneType)
_REAL: tuple[type, ...] = (int, float, NoneType)
_PATH: tuple[type, ...] = (str, os.PathLike, NoneType)
_FUNCTION: tuple[type, ...] = (Callable, NoneType)  # type: ignore[assignment]
_GPU, _PROCESSES = "tables on an accelerator", "several processes"
_FOUNTAIN = "the data service fountain, which has no public client"
_EXPORT = "the export of a model for serving"

_READ = "read by the task's functions"

PARAMETERS: Mapping[str, Parameter] = MappingProxyType(
    {
        "accelerator": Parameter(
            None, (str, NoneType), "'tpu': the dense part is trained on a CUDA device"
        ),
        "mode": Parameter(
            "train", str, "work of `fit`: 'train'; 'eval' and 'infer' change no row and parameter"
        ),
        "input.eval_examples": Parameter(
            None,
            _NUMBER,
            "samples of an evaluation: `eval.steps`, if unset, is this over the batch size",
        ),
        "input.train_examples": Parameter(None, _NUMBER, _READ),
        "eval.per_replica_batch_size": Parameter(None, _NUMBER, _READ),
        "eval.steps_per_eval": Parameter(
            10000, int, "steps between two evaluations of `fit`, unless it is the default"
        ),
        "eval.steps": Parameter(None, _NUMBER, "batches of an evaluation; None reads all"),
        "train.steps": Parameter(None, _NUMBER, "most steps of one `fit` of mode 'train'"),
        "train.max_steps": Parameter(
            None, _NUMBER, "global step at which training ends, earlier runs included"
        ),
        "train.per_replica_batch_size": Parameter(None, _NUMBER, _READ),
        "train.file_pattern": Parameter(
            None, (str, NoneType), f"{_READ}; set by `monolith train --data PATH`"
        ),
        "train.repeat": Parameter(
            False, bool, "whether training opens the input function again when its data end"
        ),
        "train.label_key": Parameter("label", str, "column with the label"),
        "train.save_checkpoints_steps": Parameter(
            None, _NUMBER, "steps between two checkpoints; needs a folder for them"
        ),
        "train.save_checkpoints_secs": Parameter(
            None, _REAL, "seconds between two checkpoints, instead of steps"
        ),
        "train.dense_only_save_checkpoints_secs": Parameter(
            None, _REAL, "seconds between two checkpoints without tables, in `dense_only/`"
        ),
        "train.dense_only_save_checkpoints_steps": Parameter(
            None, _NUMBER, "steps between two checkpoints without tables, in `dense_only/`"
        ),
        "train.max_pending_seconds_for_barrier": Parameter(
            30, (int, float), "seconds that a save waits for other workers; one process has none"
        ),
        "train.slow_start_steps": Parameter(
            0, int, "worker i waits for global step `int(K * ln(1 + i))`; worker 0 never waits"
        ),
        "train.sample_bias": Parameter(0.0, (int, float), _READ),
        "train.use_gpu_emb_table": Parameter(False, bool, needs=_GPU),
        "train.use_fountain": Parameter(False, bool, needs=_FOUNTAIN),
        "train.fountain_zk_host": Parameter("", str, needs=_FOUNTAIN),
        "train.fountain_model_name": Parameter("", str, needs=_FOUNTAIN),
        "train.fountain_parse_on_server": Parameter(False, bool, needs=_FOUNTAIN),
        "train.fountain_precompute_value_rowids": Parameter(False, bool, needs=_FOUNTAIN),
        "metrics.enable_deep_insight": Parameter(
            False, bool, "whether `write_deep_insight` sends records; needs a sink for them"
        ),
        "metrics.deep_insight_target": Parameter(
            "ctr_head", str, "heads of the records, separated by commas"
        ),
        "metrics.deep_insight_name": Parameter(
            None, (str, NoneType), "model of records and counters; None takes `di_name_<Class>`"
        ),
        "metrics.deep_insight_sample_ratio": Parameter(
            0.01, (int, float), "share of the samples that have a record, 0 to 1"
        ),
        "metrics.extra_fields_keys": Parameter(
            [], list, "columns of the batch that records have too"
        ),
        "metrics.enable_throughput_hook": Parameter(
            True, bool, "whether steps are counted every 30 s in the metrics sink of the trainer"
        ),
        "metrics.enable_kafka_metrics": Parameter(
            False,
            bool,
            needs="a Kafka client; send the records by a `deep_insight_sink` of your own",
        ),
        "metrics.enable_file_metrics": Parameter(
            False, bool, "whether records are written as lines below `file_base_name`"
        ),
        "metrics.enable_tf2_profiler_hook": Parameter(
            True, bool, "whether `profile_dir` of the task, if set, gets traces of 10 steps"
        ),
        "metrics.file_base_name": Parameter("", str, "folder of `enable_file_metrics`"),
        "metrics.file_ext": Parameter("txt", str, "ending of the files"),
        "metrics.parse_fn": Parameter(
            None, _FUNCTION, "record as text -> dictionary; `json.loads` if None"
        ),
        "metrics.key_fn": Parameter(
            None, _FUNCTION, "record, worker and base -> folder of its line"
        ),
        "metrics.layout_fn": Parameter(None, _FUNCTION, "record -> line"),
        "metrics.dump_filename": Parameter("", str, "TFRecord file that gets the records too"),
        "metrics.use_data_service": Parameter(False, bool, needs="a data service"),
        "serving.export_with_gpu_allowed": Parameter(False, bool, needs=_EXPORT),
        "serving.export_with_cleared_entry_devices": Parameter(False, bool, needs=_EXPORT),
        "serving.export_when_saving": Parameter(False, bool, needs=_EXPORT),
        "serving.export_dir_base": Parameter("exported_models", str, needs=_EXPORT),
        "serving.export_mode": Parameter(ExportMode.DISTRIBUTED, int, needs=_EXPORT),
        "serving.shared_embedding": Parameter(True, bool, needs=_EXPORT),
        "serving.with_remote_gpu": Parameter(False, bool, needs=_EXPORT),
    }
)
"""The parameters of every `NativeTask` by dotted name; beside them there is `name`."""

MODEL_PARAMETERS: Mapping[str, Parameter] = MappingProxyType(
    {
        "metrics.disable_native_metrics": Parameter(
            True, bool, "whether the heads have no AUC or squared error of their own"
        ),
        "output_path": Parameter(
            None,
            _PATH,
            "folder for predictions of evaluations and predictions, as lines of text",
        ),
        "output_fields": Parameter(
            None, (str, NoneType), "columns of each line, separated by commas"
        ),
        "delimiter": Parameter("\t", str, "text between two values of a line"),
        "file_name": Parameter("", str, "first part of the name of the file; `part` if empty"),
        "enable_grads_and_vars_summary": Parameter(
            False, bool, "whether the metrics have the norms of gradients and dense parameters"
        ),
        "dense_weight_decay": Parameter(
            0.0, (int, float), "factor of dense values that are added to their gradients"
        ),
        "clip_norm": Parameter(
            1000.0, _REAL, "greatest norm of all gradients together; None clips nothing"
        ),
        "sparse_norm_warmup_steps": Parameter(
            None, _NUMBER, "steps in which the bound of the tables grows from 0"
        ),
        "default_occurrence_threshold": Parameter(
            0, int, "occurrences before an id gets a row, where a column sets none"
        ),
    }
)
"""The parameters that every `MonolithBaseModel` has too."""

COLUMN_PARAMETERS: Mapping[str, Parameter] = MappingProxyType(
    {
        "feature_list": Parameter(
            None,
            _PATH,
            "path of a `feature_list.conf`, which says the slots of features",
        ),
        "enable_fused_layout": Parameter(False, bool, "whether lookups return layouts by name"),
    }
)
"""The parameters that every `MonolithModel` has too."""

MODES = ("train", "eval", "infer")

_COUNTS = (  # None, or above 0
    "input.eval_examples",
    "eval.per_replica_batch_size",
    "eval.steps_per_eval",
    "eval.steps",
    "train.steps",
    "train.max_steps",
    "train.per_replica_batch_size",
    "train.save_checkpoints_steps",
    "train.save_checkpoints_secs",
    "train.dense_only_save_checkpoints_secs",
    "train.dense_only_save_checkpoints_steps",
    "sparse_norm_warmup_steps",
)

_NUMBERS = (  # None, or at least 0
    "train.max_pending_seconds_for_barrier",
    "train.slow_start_steps",
    "clip_norm",
    "dense_weight_decay",
    "default_occurrence_threshold",
)


class _NearNames:
    """Hold parameters that name the nearest ones when a name is unknown."""

    def _check_defined(self, name: str, path: str | None = None) -> None:
        try:
            super()._check_defined(name, path)  # type: ignore[misc]
        except AttributeError as error:
            near = difflib.get_close_matches(name, list(self), 1)  # type: ignore[call-overload]
            inner = [key for key in _dotted_names(self) if key.endswith(f".{name}")]
            if "did you mean" in str(error) or not (near or inner):
                raise
            names = ",".join(near or inner)
            raise AttributeError(f"{error} (did you mean: [{names}])") from None


class NativeParams(_NearNames, InstantiableParams):
    """Hold the parameters of a task."""


class ParamsGroup(_NearNames, Params):
    """Hold the parameters of a group, such as `train`."""


def _dotted_names(params: Any) -> Iterator[str]:
    for name, value in params.items():
        if isinstance(value, Params):
            yield from (f"{name}.{inner}" for inner, _ in value.items())


def native_params(cls: type) -> NativeParams:
    """Return the parameters of a task class, with their defaults.

    Example:
        >>> class Clicks: ...
        >>> params = native_params(Clicks)
        >>> params.name, params.train.label_key
        ('Clicks', 'label')
    """
    params = NativeParams(cls)
    params.define("name", cls.__name__, "name of the task")
    define_params(params, PARAMETERS)
    return params


def define_params(params: Params, parameters: Mapping[str, Parameter]) -> None:
    """Define parameters by dotted name; groups that are not there are created."""
    for path, parameter in parameters.items():
        group, _, name = path.rpartition(".")
        if group and group not in params:
            params.define(group, ParamsGroup(), f"parameters of {group}")
        holder = params[group] if group else params
        default = parameter.default
        value = list(default) if isinstance(default, list) else default
        holder.define(name, value, parameter.meaning or f"refused: needs {parameter.needs}")


def check_params(params: Params) -> None:
    """Refuse values of another type, out of range, or that need a part that does not exist here.

    Raises:
        NotImplementedError: A parameter needs a part that does not exist here.
        TypeError: A value has another type.
        ValueError: A number or the mode is out of range, or two paces contradict each other.
    """
    which = f"(task {params.get('name')!r})"
    check_values(params, PARAMETERS)
    ratio = params.get("metrics.deep_insight_sample_ratio")
    if not 0 <= ratio <= 1:
        raise ValueError(
            "[NativeTask] expected params.metrics.deep_insight_sample_ratio in 0..1, got "
            f"{ratio!r} {which}"
        )
    if params.get("mode") not in MODES:
        raise ValueError(
            f"model error! expected params.mode in {', '.join(MODES)}, got "
            f"{params.get('mode')!r} {which}"
        )
    _check_accelerator(params.get("accelerator"), which)
    _check_paces(params)


def _check_accelerator(name: str | None, which: str) -> None:
    if name not in (None, "tpu"):
        raise NotImplementedError(
            f"[NativeTask] expected params.accelerator None or 'tpu', got {name!r} {which}; train "
            "on several processes by distributed_sync_train, and there is no backend for XLA"
        )


def check_values(params: Params, parameters: Mapping[str, Parameter]) -> None:
    """Refuse values of another type, below the least one, or that need a part that is not here.

    Raises:
        NotImplementedError: A parameter needs a part that does not exist here.
        TypeError: A value has another type.
        ValueError: A number is too small.
    """
    which = f"(task {params.get('name')!r})"
    for path, parameter in parameters.items():
        value = params.get(path)
        if parameter.needs and value != parameter.default:
            raise NotImplementedError(
                f"[NativeTask] expected params.{path}={parameter.default!r}, got {value!r} {which};"
                f" another value needs {parameter.needs}"
            )
        if not _has_kind(value, parameter.kind):
            raise TypeError(
                f"[NativeTask] expected params.{path} as {_words_of(parameter.kind)}, got "
                f"{value!r} {which}"
            )
        if path in _COUNTS and value is not None and value <= 0:
            raise ValueError(f"[NativeTask] expected params.{path} > 0, got {value!r} {which}")
        if path in _NUMBERS and value is not None and not value >= 0:
            raise ValueError(f"[NativeTask] expected params.{path} >= 0, got {value!r} {which}")


def _check_paces(params: Params) -> None:
    for prefix in ("", "dense_only_"):
        names = [f"{prefix}save_checkpoints_{unit}" for unit in ("secs", "steps")]
        if all(params.get(f"train.{name}") is not None for name in names):
            raise ValueError(f"Can not provide both {names[0]} and {names[1]}.")


def _has_kind(value: Any, kind: type | tuple[type, ...]) -> bool:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if isinstance(value, bool) and bool not in kinds:
        return False
    return isinstance(value, (*kinds, tuple) if list in kinds else kinds)


def _words_of(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    names = {NoneType: "None", Callable: "a function"}
    return " or ".join(names.get(part, part.__name__) for part in kinds)


def set_by_name(params: Params, values: Mapping[str, Any]) -> None:
    """Set parameters by dotted name; texts become numbers and lists as the defaults say.

    Args:
        params: of a task; changed.
        values: dotted name -> value, such as `{"train.max_steps": 10}`.

    Raises:
        AttributeError: There is no such parameter; the text has the nearest name.
        AssertionError: A name leads into a value.
    """
    for path, value in values.items():
        present = params.get(path)
        if isinstance(present, Params):
            raise AttributeError(f"{path} (did you mean: [{path}.{next(iter(present))}])")
        if isinstance(present, str) and not isinstance(value, str):
            value = str(value)
        if isinstance(present, list) and isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(present, enum.Enum):
            value = _member(type(present), value)
        params.set(**{path: value})


def _member(kind: type[enum.Enum], value: Any) -> Any:
    """Return the member that a name or a value means; another value is left to `check_params`."""
    value = "NONE" if value is None else value  # the command line reads `none` as no value
    names = {name: member for member in kind for name in (member.name, member.value)}
    return names.get(value, value)
