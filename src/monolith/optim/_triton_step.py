"""Fused Triton kernels of the rules in `update_rules.py`; imported on the first step on CUDA."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

try:
    triton: Any = import_module("triton")
    tl: Any = import_module("triton.language")
except ImportError as error:
    raise ImportError(
        "[monolith.optim] expected Triton for a step on CUDA, got none; pip install triton"
    ) from error

_BLOCK = 1024


@triton.jit
def _divide(x, y):  # type: ignore[no-untyped-def]
    """Divide with the rounding of IEEE 754; `/` of Triton is an approximation."""
    return tl.div_rn(x, y)


@triton.jit  # type: ignore[untyped-decorator]
def _adamom(  # type: ignore[no-untyped-def]
    w_ptr, g_ptr, m_ptr, v_ptr, c_ptr, n, rate_ptr, rate, ada, mom, epsilon, decay,
    has_rate: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < n
    if has_rate:
        rate = tl.load(rate_ptr).to(tl.float32)
    w = tl.load(w_ptr + at, mask=inside)
    h = tl.load(g_ptr + at, mask=inside) + decay * w
    m = mom * tl.load(m_ptr + at, mask=inside) + (1.0 - mom) * h
    v = ada * tl.load(v_ptr + at, mask=inside) + h * h
    c = ada * tl.load(c_ptr + at, mask=inside) + 1.0
    w = w - _divide(rate * m, tl.sqrt_rn(_divide(v, c) + epsilon))
    tl.store(m_ptr + at, m, mask=inside)
    tl.store(v_ptr + at, v, mask=inside)
    tl.store(c_ptr + at, c, mask=inside)
    tl.store(w_ptr + at, w, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _rmsprop(  # type: ignore[no-untyped-def]
    w_ptr, g_ptr, m_ptr, v_ptr, n, rate_ptr, rate, beta1, beta2, epsilon, decay,
    has_rate: tl.constexpr, is_v2: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < n
    if has_rate:
        rate = tl.load(rate_ptr).to(tl.float32)
    w = tl.load(w_ptr + at, mask=inside)
    h = tl.load(g_ptr + at, mask=inside) + decay * w
    if is_v2:
        v = beta2 * tl.load(v_ptr + at, mask=inside) + h * h
        root = tl.sqrt_rn(v) + epsilon
    else:
        v = beta2 * tl.load(v_ptr + at, mask=inside) + (1.0 - beta2) * (h * h)
        root = tl.sqrt_rn(v + epsilon)
    m = beta1 * tl.load(m_ptr + at, mask=inside) + _divide(rate * h, root)
    tl.store(v_ptr + at, v, mask=inside)
    tl.store(m_ptr + at, m, mask=inside)
    tl.store(w_ptr + at, w - m, mask=inside)


def triton_step(
    rule: str,
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    states: list[torch.Tensor],
    options: Sequence[float],
    rate: float | torch.Tensor,
) -> None:
    """Update parameters and states in place, with one launch per parameter.

    The arguments are those of `DenseStep`, float32 and contiguous, on CUDA.
    """
    is_tensor, count = isinstance(rate, torch.Tensor), len(parameters)
    # Without fused multiply-add, every operation rounds as on the CPU.
    named: dict[str, Any] = {"has_rate": is_tensor, "block": _BLOCK, "enable_fp_fusion": False}
    if rule != "adamom":
        named["is_v2"] = rule == "rmsprop_v2"
    kernel = _adamom if rule == "adamom" else _rmsprop
    for number, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        size = parameter.numel()
        if size == 0:
            continue
        with torch.cuda.device(parameter.device):
            # The kernel reads the rate at the address, or takes the number.
            address = torch.as_tensor(rate, device=parameter.device) if is_tensor else parameter
            kernel[(triton.cdiv(size, _BLOCK),)](
                parameter,
                gradient,
                *states[number::count],
                size,
                address,
                0.0 if is_tensor else float(rate),
                *options,
                **named,
            )
