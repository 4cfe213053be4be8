"""Give the hook that makes a run the current one, and `current_run`."""

from monolith.native_training.hooks.current_run import CurrentRunHook
from monolith.train.driver import current_run

SetCurrentSessionHook = CurrentRunHook
get_current_session = current_run
