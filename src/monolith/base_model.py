"""Import path of the reference system; see `monolith.train.monolith_model`."""

from monolith.train.monolith_model import EstimatorSpec, MonolithModel

__all__ = ["EstimatorSpec", "MonolithBaseModel", "MonolithModel"]

MonolithBaseModel = MonolithModel
