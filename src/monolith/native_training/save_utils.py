"""Give the savers, their hook and its timer."""

from typing import Any

from monolith.native_training.saver import hook as _hook
from monolith.native_training.saver import timer as _timer
from monolith.native_training.saver.ps_monitor import PsMonitor as PsMonitor
from monolith.native_training.saver.saver import PartialRecoverySaver as PartialRecoverySaver
from monolith.native_training.saver.saver_builder import SaverBuilder as SaverBuilder
from monolith.native_training.saver.state_files import SaveHelper as SaveHelper
from monolith.native_training.saver.state_files import (
    get_latest_checkpoint_state as get_latest_checkpoint_state,
)
from monolith.native_training.saver.state_files import (
    get_monolith_checkpoint_state as get_monolith_checkpoint_state,
)
from monolith.native_training.saver.tide import TideWindow as _TideWindow

_TIDE = ("tide_start_hour", "tide_start_minute", "tide_end_hour", "tide_end_minute")


class _WithTide:
    def __init__(self, *args: Any, **options: Any) -> None:
        window = _TideWindow.if_given(*(options.pop(name, None) for name in _TIDE))
        super().__init__(*args, tide=window, **options)  # type: ignore[call-arg]


class _TimerWithTide(_WithTide, _timer.SecondOrStepTimer): ...


class _HookWithTide(_WithTide, _hook.NoFirstSaveCheckpointSaverHook): ...


SecondOrStepTimerWithTideSetting = _TimerWithTide
NoFirstSaveCheckpointSaverHook = _HookWithTide
