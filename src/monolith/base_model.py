"""Import path of the reference system; see `monolith.native_training.tasks.monolith_model`."""

from monolith.native_training.tasks.monolith_model import EstimatorSpec, MonolithModel

__all__ = ["EstimatorSpec", "MonolithBaseModel", "MonolithModel"]

MonolithBaseModel = MonolithModel
