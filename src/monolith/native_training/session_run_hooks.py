"""Import path of the reference system; see `monolith.train.tide`."""

from monolith.train.tide import CustomGlobalStepWaiterHook as CustomGlobalStepWaiterHook
from monolith.train.tide import TideStoppingHook as TideStoppingHook
from monolith.train.tide import before as before
from monolith.train.tide import tide_available_now as tide_available_now
