"""Give the combiners of the rows of one feature in one example."""

from monolith.native_training.slots.combiners import Combiner, FirstN, ReduceMean, ReduceSum

__all__ = ["Combiner", "FirstN", "ReduceMean", "ReduceSum"]
