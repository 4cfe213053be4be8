"""Give `MonolithModel`, a task whose model function names features."""

from monolith.native_training.tasks.monolith_model import EstimatorSpec, MonolithModel

__all__ = ["EstimatorSpec", "MonolithBaseModel", "MonolithModel"]

MonolithBaseModel = MonolithModel
