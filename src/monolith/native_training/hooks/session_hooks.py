"""Import path of the reference system."""

from monolith.native_training.hooks.current_run import CurrentRunHook
from monolith.train.driver import current_run

SetCurrentSessionHook = CurrentRunHook
get_current_session = current_run
