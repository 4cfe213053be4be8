"""Give the hooks that stop a run at hours of the day and hold workers back."""

from monolith.native_training.saver.tide import (
    CustomGlobalStepWaiterHook as CustomGlobalStepWaiterHook,
)
from monolith.native_training.saver.tide import TideStoppingHook as TideStoppingHook
from monolith.native_training.saver.tide import before as before
from monolith.native_training.saver.tide import tide_available_now as tide_available_now
