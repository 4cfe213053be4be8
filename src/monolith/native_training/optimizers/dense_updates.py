"""Update one dense parameter in place, with the ops of the reference's dense optimizers."""

import threading
from collections.abc import Mapping

import torch

from monolith.optim import AdamomOptimizer, RmspropOptimizer
from monolith.optim.dense_step import DenseStep
from monolith.optim.update_rules import Rate
from monolith.table.arguments import check_number

_LOCK = threading.Lock()  # of all calls with use_locking


def resource_apply_adamom(
    var: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    c: torch.Tensor,
    learning_rate: Rate,
    ada_decay: float,
    mom_decay: float,
    epsilon: float,
    weight_decay: float,
    grad: torch.Tensor,
    use_locking: bool = False,
) -> None:
    """Make one step of Adamom: change a parameter and its state in place.

    Args:
        var: parameter; the tensors `m`, `v`, `c` and `grad` have its shape, dtype and device.
        m: momentum.
        v: decayed sum of squares.
        c: decayed count.
        learning_rate: number, or a tensor of one element.
        ada_decay: decay of `v` and `c`.
        mom_decay: decay of `m`.
        epsilon: number added below the root.
        weight_decay: share of the weight that is added to its gradient.
        grad: gradient of the parameter.
        use_locking: whether calls with `use_locking` run one after the other.

    Raises:
        TypeError: an argument is no tensor, or no number.
        ValueError: tensors differ, or a number is out of its range.

    Example:
        >>> var, (m, v, c) = torch.tensor([0.1]), torch.zeros(3, 1)
        >>> resource_apply_adamom(var, m, v, c, 0.1, 0.99, 0.9, 1e-6, 0.0, torch.tensor([0.12]))
        >>> var
        tensor([0.0900])
    """
    tensors = {"var": var, "m": m, "v": v, "c": c, "grad": grad}
    options = {
        "ada_decay": ada_decay,
        "mom_decay": mom_decay,
        "epsilon": epsilon,
        "weight_decay": weight_decay,
    }
    where = "[resource_apply_adamom]"
    _check(where, tensors, options, AdamomOptimizer.ranges, learning_rate)
    _run("adamom", tensors, options, learning_rate, use_locking)


def resource_apply_rmsprop(
    var: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    learning_rate: Rate,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    grad: torch.Tensor,
    use_locking: bool = False,
    use_v2: bool = False,
) -> None:
    """Make one step of RMSprop: change a parameter and its state in place.

    Args:
        var: parameter; the tensors `m`, `v` and `grad` have its shape, dtype and device.
        m: momentum.
        v: mean of squares, or with `use_v2` their decayed sum.
        learning_rate: number, or a tensor of one element.
        beta1: decay of `m`.
        beta2: decay of `v`.
        epsilon: number that keeps the divisor above 0.
        weight_decay: share of the weight that is added to its gradient.
        grad: gradient of the parameter.
        use_locking: whether calls with `use_locking` run one after the other.
        use_v2: whether to use the second variant.

    Raises:
        TypeError: an argument is no tensor, or no number.
        ValueError: tensors differ, or a number is out of its range.
    """
    tensors = {"var": var, "m": m, "v": v, "grad": grad}
    options = {"beta1": beta1, "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay}
    where = "[resource_apply_rmsprop]"
    _check(where, tensors, options, RmspropOptimizer.ranges, learning_rate)
    _run("rmsprop_v2" if use_v2 else "rmsprop", tensors, options, learning_rate, use_locking)


def _check(
    where: str,
    tensors: Mapping[str, torch.Tensor],
    options: Mapping[str, float],
    ranges: Mapping[str, tuple[float, float]],
    learning_rate: Rate,
) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(
                f"{where} expected {name} as a torch.Tensor, got {type(tensor).__name__}"
            )
    var = tensors["var"]
    if not var.is_floating_point():
        raise ValueError(f"{where} expected var of a floating-point dtype, got {var.dtype}")
    for name, tensor in tensors.items():
        kind = (tuple(tensor.shape), tensor.dtype, tensor.device)
        expected = (tuple(var.shape), var.dtype, var.device)
        if kind != expected:
            raise ValueError(
                f"{where} expected {name} with shape, dtype and device of var, {expected}, got "
                f"{kind}"
            )
    limits = dict(ranges)
    numbers = dict(options)
    if not isinstance(learning_rate, torch.Tensor):
        numbers["learning_rate"], limits["learning_rate"] = learning_rate, (0.0, 1e38)
    elif learning_rate.numel() != 1:
        raise ValueError(
            f"{where} expected learning_rate as a number or a tensor of one element, got shape "
            f"{tuple(learning_rate.shape)}"
        )
    for name, number in numbers.items():
        check_number(where, name, number)
        least, greatest = limits[name]
        if not least <= number <= greatest:
            raise ValueError(f"{where} expected {name} in [{least:g}, {greatest:g}], got {number}")


@torch.no_grad()
def _run(
    rule: str,
    tensors: Mapping[str, torch.Tensor],
    options: Mapping[str, float],
    learning_rate: Rate,
    use_locking: bool,
) -> None:
    states = [[tensor] for name, tensor in tensors.items() if name not in ("var", "grad")]
    step = DenseStep(rule, [float(option) for option in options.values()], learning_rate)
    if use_locking:
        with _LOCK:
            step.run([tensors["var"]], [tensors["grad"]], *states)
    else:
        step.run([tensors["var"]], [tensors["grad"]], *states)
