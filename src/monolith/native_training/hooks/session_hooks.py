"""Import path of the reference system; see `monolith.train.hooks` and `monolith.util.run`."""

from monolith.train.hooks import CurrentRunHook
from monolith.util.run import current_run

SetCurrentSessionHook = CurrentRunHook
get_current_session = current_run
