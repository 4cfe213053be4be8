"""Give `MonolithModel`, a task whose model function names features, and the losses of heads."""

from monolith.native_training.tasks.monolith_base_model import EstimatorSpec, MonolithBaseModel
from monolith.native_training.tasks.monolith_model import MonolithModel
from monolith.native_training.util.head_losses import (
    get_sigmoid_loss_and_pred,
    get_softmax_loss_and_pred,
)

__all__ = [
    "EstimatorSpec",
    "MonolithBaseModel",
    "MonolithModel",
    "get_sigmoid_loss_and_pred",
    "get_softmax_loss_and_pred",
]
