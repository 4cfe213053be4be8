"""Import path of the reference system; see `monolith.native_training.slots.combiners`."""

from monolith.native_training.slots.combiners import Combiner, FirstN, ReduceMean, ReduceSum

__all__ = ["Combiner", "FirstN", "ReduceMean", "ReduceSum"]
