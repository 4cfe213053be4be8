"""From the ids of a batch to one matrix, and back to the rows."""

from monolith.features.autograd import FeatureBags
from monolith.features.engine import BagFeature

__all__ = [
    "BagFeature",
    "FeatureBags",
]
