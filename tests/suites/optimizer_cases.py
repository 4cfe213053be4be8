"""Every sparse optimizer with several sets of options, by name."""

from monolith.table.optimizers import (
    FTRL,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AMSGrad,
    BatchSoftmax,
    DynamicWdAdagrad,
    GroupAdagrad,
    GroupFTRL,
    Momentum,
    MovingAverage,
    RMSprop,
    RMSpropV2,
    RowWiseAdagrad,
)

CASES = {
    "sgd": SGD(0.1),
    "sgd-warmup": SGD(0.1, warmup_steps=50),
    "adagrad": Adagrad(0.1),
    "adagrad-from-zero": Adagrad(0.1, 0.0, weight_decay_factor=0.01),
    "row-wise-adagrad": RowWiseAdagrad(0.1),
    "row-wise-adagrad-accumulator": RowWiseAdagrad(0.1, 0.5, epsilon=0.1),
    "dynamic-wd-adagrad": DynamicWdAdagrad(0.1, weight_decay_factor=0.1),
    "dynamic-wd-adagrad-decoupled": DynamicWdAdagrad(
        0.1, weight_decay_factor=0.1, decouple_weight_decay=True
    ),
    "group-adagrad": GroupAdagrad(0.1),
    "group-adagrad-lasso": GroupAdagrad(0.1, beta=1.0, l2_regularization=0.5),
    "group-adagrad-decay": GroupAdagrad(0.1, 0.5, 0.0, 0.1, weight_decay_factor=0.1),
    "ftrl": FTRL(0.1),
    "ftrl-l1-l2": FTRL(0.1, 0.2, beta=1.0, l1_regularization=0.5, l2_regularization=0.1),
    "group-ftrl": GroupFTRL(0.1),
    "group-ftrl-l1-l2": GroupFTRL(0.1, 0.1, 0.5, l1_regularization=1.5, l2_regularization=0.1),
    "adadelta": Adadelta(0.1),
    "adadelta-options": Adadelta(
        0.1, weight_decay_factor=0.1, averaging_ratio=0.5, epsilon=0.1, warmup_steps=9
    ),
    "adam": Adam(0.1),
    "adam-nesterov": Adam(0.1, 0.5, 0.9, weight_decay_factor=0.1, use_nesterov=True, epsilon=1e-3),
    "amsgrad": AMSGrad(0.1),
    "amsgrad-nesterov": AMSGrad(0.1, beta2=0.5, weight_decay_factor=0.1, use_nesterov=True),
    "momentum": Momentum(0.1),
    "momentum-nesterov": Momentum(0.1, 0.1, use_nesterov=True, momentum=0.5),
    "moving-average": MovingAverage(),
    "rmsprop": RMSprop(0.1),
    "rmsprop-decay": RMSprop(0.1, weight_decay_factor=0.1, momentum=0.5),
    "rmsprop-v2": RMSpropV2(0.1),
    "rmsprop-v2-decay": RMSpropV2(0.1, weight_decay_factor=0.1, momentum=0.5),
    "batch-softmax": BatchSoftmax(0.3),
}

CLASSES = sorted({type(optimizer) for optimizer in CASES.values()}, key=lambda c: c.__name__)


def dims_of(optimizer):
    """Widths that the loops of an optimizer must get right."""
    return (1,) if isinstance(optimizer, BatchSoftmax) else (1, 3, 8, 17)


def small_dim(optimizer):
    return 1 if isinstance(optimizer, BatchSoftmax) else 3
