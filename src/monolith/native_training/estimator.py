"""Give `Estimator` and its `RunConfig`, for runs in this process."""

from monolith.native_training.tasks.estimator import Estimator
from monolith.native_training.tasks.monolith_base_model import EstimatorSpec
from monolith.native_training.tasks.run_config import RunConfig

__all__ = ["Estimator", "EstimatorSpec", "RunConfig"]
