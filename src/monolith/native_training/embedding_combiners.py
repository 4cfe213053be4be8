"""Import path of the reference system; see `monolith.embedding.combiners`."""

from monolith.embedding.combiners import Combiner, FirstN, ReduceMean, ReduceSum

__all__ = ["Combiner", "FirstN", "ReduceMean", "ReduceSum"]
