"""Give `StrQueue`: a queue of strings with a state."""

from monolith.data.str_queue import StrQueue as StrQueue
