"""Import path of the reference system; see `monolith.data.str_queue`."""

from monolith.data.str_queue import StrQueue as StrQueue
