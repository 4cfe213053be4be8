"""Train, evaluate and predict with a native task by the verbs of an estimator."""

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from monolith.checkpoint import Checkpoint, find, open_checkpoint
from monolith.checkpoint.storage import make_folder
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.native_training.saver.restore_override import (
    RestoreSettings,
    copy_checkpoint_state,
    get_checkpoint_state,
)
from monolith.native_training.tasks.native_params import set_by_name
from monolith.native_training.tasks.native_task import NativeTask
from monolith.native_training.tasks.run_config import RunConfig
from monolith.native_training.tasks.step_limit import StepLimitHook
from monolith.native_training.util.params import Params
from monolith.observe.metrics import MetricsSink
from monolith.train.driver import Hook
from monolith.train.run_metrics import FitResult
from monolith.train.run_state import seed_all
from monolith.train.settings import WAIT, TrainSettings
from monolith.train.task import Mode
from monolith.train.trainer import Trainer

if TYPE_CHECKING:
    from monolith.native_training.jobs.runner_config import RunnerConfig

_log = logging.getLogger(__name__)

_GLOBAL_STEP = "global_step"
_PACES = (
    "save_checkpoints_secs",
    "save_checkpoints_steps",
    "dense_only_save_checkpoints_secs",
    "dense_only_save_checkpoints_steps",
)


class Estimator:
    """Trains, evaluates and predicts with a native task, whose state is in a folder of checkpoints.

    Every call makes the task anew from its parameters and goes on from the newest checkpoint.
    With a `RunnerConfig` that is not local, `train` is one process of a job, and the other verbs
    read the checkpoints of the job in this process. Deep insight is off.

    Args:
        model: Parameters of a `NativeTask`, its class, or a task, whose parameters count.
        conf: Options, a `RunConfig` or `RunnerConfig`; a local run in a temporary folder if None.
        warm_start_from: Checkpoint, or folder with checkpoints, whose rows and parameters the first
            training in an empty `model_dir` begins with, at step 0.
        metrics: Sink of the measurements of trainings, which the caller closes.

    Attributes:
        params: Parameters of the task.
        model_dir: Folder of the checkpoints.
        result: Result of the last `train`; None before, and of a server.

    Raises:
        NotImplementedError: An option needs a part that is not here.
        TypeError: `model` is no native task.
        InvalidArgumentError: `params_override` is no JSON object, or names an unknown parameter.

    Example:
        >>> from monolith.native_training.tasks.ffm import FFMParams
        >>> estimator = Estimator(FFMParams().task(), RunConfig(is_local=True))
        >>> estimator.train(steps=5).latest_checkpoint().rpartition("/")[2]
        'model.ckpt-5'
        >>> sorted(estimator.evaluate(steps=1))
        ['global_step', 'log_loss', 'loss']
    """

    def __init__(
        self,
        model: Any,
        conf: "RunConfig | RunnerConfig | None" = None,
        warm_start_from: "str | os.PathLike[str] | None" = None,
        *,
        metrics: MetricsSink | None = None,
    ) -> None:
        self.conf = RunConfig(is_local=True) if conf is None else conf
        if isinstance(self.conf, RunConfig):
            self.conf.check_local()
        else:
            self.conf.check()
        self._metrics = metrics
        self.params = _params_of(model)
        self.params.metrics.enable_deep_insight = False
        self._take_over(self.conf)
        self._warm_start = None if warm_start_from is None else os.fspath(warm_start_from)
        if not self.conf.is_local:
            self._check_job()
        self.model_dir = self.conf.model_dir or tempfile.mkdtemp(prefix=f"{self.params.name}-")
        if not self.conf.model_dir:
            _log.warning("conf.model_dir is empty: checkpoints are in %s", self.model_dir)
        if isinstance(self.conf, RunConfig) and self.conf.restore_dir is not None:
            make_folder(self.model_dir)
            copy_checkpoint_state(self.model_dir, self._restore_settings(Mode.TRAIN.value))
        self.result: FitResult | None = None
        self._task("train")  # what its parameters ask for is refused now

    def _check_job(self) -> None:
        """Refuse what a process of a job cannot do."""
        if self._warm_start is not None:
            raise NotImplementedError(
                "[Estimator] expected warm_start_from=None for a job, got "
                f"{self._warm_start!r}; name the folder in conf.restore_dir"
            )
        if not self.conf.model_dir:
            raise ValueError("model dir can't be empty.")

    def _take_over(self, conf: "RunConfig | RunnerConfig") -> None:
        """Write the options that are parameters of the task too."""
        for name in _PACES:
            value = getattr(conf, name)
            if value is not None:
                other = name[:-4] + "steps" if name.endswith("secs") else name[:-5] + "secs"
                self.params.train[name] = value
                if getattr(conf, other) is None:
                    self.params.train[other] = None
        if not conf.disable_native_metrics:
            self._set_of_model("disable_native_metrics", self.params.metrics, False)
        if conf.enable_fused_layout:
            self._set_of_model("enable_fused_layout", self.params, True)
        if conf.params_override:
            set_overrides(self.params, conf.params_override)

    def _set_of_model(self, name: str, params: Params, value: bool) -> None:
        if name not in params:
            raise InvalidArgumentError(
                f"[Estimator] expected a MonolithModel for conf.{name}={value}, got "
                f"{self.params.cls.__name__}, which has no such parameter"
            )
        params[name] = value

    def train(
        self,
        steps: int | None = None,
        max_steps: int | None = None,
        hooks: Sequence[Hook] | None = None,
    ) -> "Estimator":
        """Train and save checkpoints; return the estimator.

        Args:
            steps: Most steps of this call; until the data ends if None.
            max_steps: Global step at which training ends; nothing is trained from there on.
            hooks: Hooks of the run.

        Raises:
            ValueError: `steps` and `max_steps` are both set, or `steps` in a job.
        """
        if steps is not None and max_steps is not None:
            raise ValueError("Can not provide both steps and max_steps.")
        if not self.conf.is_local:
            if steps is not None:
                raise ValueError(f"[Estimator] expected max_steps in a job, got steps={steps}")
            self._train_in_job(max_steps, _hooks_of(hooks))
            return self
        checkpoint, settings = self._checkpoint("train"), self._settings(self.model_dir)
        servers = self.conf.num_ps or None
        with Trainer(self._task("train"), settings, servers, metrics=self._metrics) as trainer:
            if checkpoint is not None:
                trainer.restore(checkpoint.prefix)
            elif self._warm_start is not None:
                trainer.restore(self._warm_start)
                trainer.state.begin_anew()
                trainer.run.global_step = 0
            limit = StepLimitHook(steps, max_steps)
            self.result = trainer.fit(hooks=[limit, *_hooks_of(hooks)])
        return self

    def _train_in_job(self, max_steps: int | None, hooks: Sequence[Hook]) -> None:
        """Run this process of the job until the job ends."""
        from monolith.native_training.cpu_training import distributed_train
        from monolith.native_training.jobs.runner_config import RunnerConfig, monolith_discovery

        assert isinstance(self.conf, RunnerConfig)
        params = self.params.copy()
        if max_steps is not None:
            params.train.max_steps = max_steps
        with monolith_discovery(self.conf) as discovery:
            assert discovery is not None
            report = distributed_train(
                self.conf, discovery, params, user_hooks=hooks, metrics=self._metrics
            )
        self.result = None if report is None else report.result

    def evaluate(
        self, steps: int | None = None, hooks: Sequence[Hook] | None = None
    ) -> dict[str, float]:
        """Return loss and metrics of the newest checkpoint over held-out data, and `global_step`.

        Args:
            steps: Most batches; all if None.
            hooks: Hooks around the batches.

        Raises:
            NotFoundError: There is no checkpoint.
            InvalidArgumentError: There is no batch.
        """
        with self._restored("eval", log_every=0) as trainer:
            step = trainer.run.global_step or 0
            source = trainer.task.source(Mode.EVAL)
            limit = StepLimitHook(steps)
            result = trainer.fit(source, hooks=[limit, *_hooks_of(hooks)])
        if not result.num_steps:
            raise InvalidArgumentError(
                "[Estimator.evaluate] expected at least one batch of mode 'eval', got none (task "
                f"{trainer.task.name!r})"
            )
        figures = result.figures
        return {"loss": figures.loss, **figures.metrics, _GLOBAL_STEP: step}

    def predict(self, *, yield_single_examples: bool = True) -> Iterator[torch.Tensor]:
        """Yield the predictions of the newest checkpoint, sample by sample.

        Args:
            yield_single_examples: Whether samples come one by one; else each batch is one tensor.

        Raises:
            NotFoundError: There is no checkpoint.
        """
        with self._restored("infer") as trainer:
            for output in trainer.predict():
                if yield_single_examples:
                    yield from output.prediction
                else:
                    yield output.prediction

    def export_saved_model(self, *args: Any, **options: Any) -> str:
        """Refuse: models are not exported.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "[Estimator.export_saved_model] expected training, evaluation or prediction, got an "
            "export; it needs the export of a model for serving, which is not there yet"
        )

    def latest_checkpoint(self) -> str | None:
        """Return the prefix of the newest checkpoint; None without one."""
        checkpoint = find(self.model_dir)
        return None if checkpoint is None else checkpoint.prefix

    def get_variable_names(self) -> list[str]:
        """Return the names of the dense tensors of the newest checkpoint, and `global_step`."""
        return sorted([*self._newest("get_variable_names").tensors, _GLOBAL_STEP])

    def get_variable_value(self, name: str) -> Any:
        """Return a dense tensor of the newest checkpoint as an array, or the `global_step`.

        Raises:
            NotFoundError: There is no such tensor, or no checkpoint.
        """
        checkpoint = self._newest("get_variable_value")
        if name == _GLOBAL_STEP:
            return np.int64(checkpoint.step or 0)
        return checkpoint.read_dense([name])[name].numpy()

    def close(self) -> None:
        """Do nothing: every call closes what it opened. There for programs that call it."""

    def _newest(self, verb: str) -> Checkpoint:
        checkpoint = find(self.model_dir)
        if checkpoint is None:
            raise NotFoundError(
                f"[Estimator.{verb}] expected a checkpoint, got none in {self.model_dir!r}; call "
                "train first"
            )
        return checkpoint

    def _restored(self, mode: str, **options: Any) -> Trainer:
        """Return a trainer with the rows and parameters of the newest checkpoint."""
        checkpoint = self._checkpoint(mode)
        if checkpoint is None:
            verb = "evaluate" if mode == "eval" else "predict"
            checkpoint = self._newest(verb)
        trainer = Trainer(
            self._task(mode), self._settings(None, **options), self.conf.num_ps or None
        )
        try:
            trainer.restore(checkpoint.prefix)
        except BaseException:
            trainer.close()
            raise
        trainer.state.begin_anew()
        return trainer

    def _checkpoint(self, mode: str) -> Checkpoint | None:
        """Return the newest checkpoint, or the one that `restore_ckpt` asks for."""
        if self.conf.restore_ckpt is None:
            return find(self.model_dir)
        state = get_checkpoint_state(self.model_dir, settings=self._restore_settings(mode))
        return None if state is None else open_checkpoint(state.model_checkpoint_path)

    def _restore_settings(self, mode: str) -> RestoreSettings:
        return RestoreSettings(self.conf.restore_ckpt, self.conf.restore_dir, mode)

    def _task(self, mode: str) -> NativeTask:
        params = self.params.copy()
        params.mode = mode
        seed_all(TrainSettings().seed)  # the constructor makes the dense model
        task: NativeTask = params.instantiate()
        return task

    def _settings(self, checkpoint_dir: str | None, **options: Any) -> TrainSettings:
        options.setdefault("log_every", self.conf.log_step_count_steps)
        keep = self.conf.checkpoints_max_to_keep
        # As in the reference system, each checkpoint of the pace is saved.
        return TrainSettings(checkpoint_dir=checkpoint_dir, keep=keep, busy_save=WAIT, **options)


def set_overrides(params: Params, text: str) -> None:
    """Set parameters from a JSON object, dotted name -> value.

    Raises:
        InvalidArgumentError: The text is no JSON object, or names an unknown parameter.

    Example:
        >>> from monolith.native_training.tasks.ffm import FFMTask
        >>> params = FFMTask.params()
        >>> set_overrides(params, '{"train.max_steps": 10}')
        >>> params.train.max_steps
        10
    """
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidArgumentError(
            f"[Estimator] expected params_override as JSON, got {error} in {text!r}"
        ) from error
    if not isinstance(values, dict):
        raise InvalidArgumentError(
            "[Estimator] expected params_override as a JSON object of names and values, got "
            f"{text!r}"
        )
    try:
        set_by_name(params, values)
    except (AttributeError, AssertionError) as error:
        raise InvalidArgumentError(
            f"[Estimator] expected parameters of the task in params_override, got {error}"
        ) from error


def _params_of(model: Any) -> Any:
    if isinstance(model, type) and issubclass(model, NativeTask):
        return model.params()
    params = model.p if isinstance(model, NativeTask) else model
    cls = params.get("cls") if isinstance(params, Params) and "cls" in params else None
    if isinstance(model, NativeTask):
        cls = type(model)
    if not (isinstance(cls, type) and issubclass(cls, NativeTask)):
        raise TypeError(
            "[Estimator] expected a NativeTask, its class or its parameters, got "
            f"{type(model).__name__}"
        )
    return params.copy().set(cls=cls)


def _hooks_of(hooks: Sequence[Hook] | None) -> list[Hook]:
    listed = list(hooks or ())
    if not all(isinstance(hook, Hook) for hook in listed):
        raise AssertionError(
            "[Estimator] expected hooks as a list of Hook, got "
            f"{', '.join(type(hook).__name__ for hook in listed)}"
        )
    return listed
