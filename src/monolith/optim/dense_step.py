"""Step lists of dense parameters with the compiled core, a fused kernel, or torch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from monolith.ops.compiled import load_native
from monolith.optim.update_rules import NUM_STATES, RULES, Rate

_MIN_THREADED = 1 << 15  # elements; for fewer, a second thread starts too late to help
# On CUDA, a tensor gets its own launch if the tensor is large or the list is short.
_LARGE = 1 << 16  # elements
_FEW = 64
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class DenseStep:
    """An update rule with its options and learning rate, for one call.

    float32 on the CPU goes to the compiled core, in one call for all tensors; float32 on CUDA to a
    fused Triton kernel, with the same bits. Other tensors, and many small tensors on CUDA, go to
    torch's operations on lists, with the same results within rounding. No step waits for the
    device. Not safe concurrently with another step of the same tensors.

    Args:
        rule: Name of the rule, a key of `monolith.optim.update_rules.RULES`.
        options: Options of the rule, in the order of `native/optimizer/dense_rules.h`.
        rate: Learning rate, or a tensor of one element that holds it.
    """

    rule: str
    options: Sequence[float]
    rate: Rate

    def run(
        self,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        *states: list[torch.Tensor],
    ) -> None:
        """Update parameters and states in place.

        Args:
            parameters: Real floating-point tensors of any shapes and devices.
            gradients: Gradient of each parameter.
            states: One list for each kind of state, with the tensor of each parameter.
        """
        buckets: dict[tuple[str, torch.dtype, bool], list[int]] = {}
        for number, parameter in enumerate(parameters):
            bucket = _bucket_of(parameter, len(parameters) <= _FEW)
            buckets.setdefault(bucket, []).append(number)
        for (device, _, is_fused), numbers in buckets.items():
            lists = [[tensors[i] for i in numbers] for tensors in (parameters, gradients, *states)]
            weights, grads = lists[0], _like(lists[0], lists[1])
            flat = [tensor for tensors in lists[2:] for tensor in tensors]
            step = self._on_device_of(weights[0])
            if not is_fused:
                RULES[self.rule](weights, grads, flat, self.options, step.rate)
            elif torch.compiler.is_compiling():
                step._run_op(weights, grads, flat)
            else:
                step._run_fused(device, weights, grads, flat)

    def _on_device_of(self, parameter: torch.Tensor) -> "DenseStep":
        """Return the step with a learning rate on the device of a parameter, if it is a tensor."""
        rate = self.rate
        if not isinstance(rate, torch.Tensor) or rate.device == parameter.device:
            return self
        return DenseStep(self.rule, self.options, rate.to(parameter.device))

    def _run_op(
        self,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        states: list[torch.Tensor],
    ) -> None:
        is_tensor = isinstance(self.rate, torch.Tensor)
        number, tensor = (0.0, self.rate) if is_tensor else (self.rate, None)
        torch.ops.monolith.dense_step(
            self.rule, parameters, gradients, states, self.options, number, tensor
        )

    def _run_fused(
        self,
        device: str,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        states: list[torch.Tensor],
    ) -> None:
        run = self._run_triton if device == "cuda" else self._run_native
        if run(parameters, gradients, states):
            torch.autograd.graph.increment_version(parameters)
        else:  # torch refuses states of other sizes
            RULES[self.rule](parameters, gradients, states, self.options, self.rate)

    def _run_triton(
        self,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        states: list[torch.Tensor],
    ) -> bool:
        """Run the kernel; return False if a state has another dtype, device, shape or order."""
        for number, tensor in enumerate(states):
            parameter = parameters[number % len(parameters)]
            is_alike = (tensor.dtype, tensor.device) == (parameter.dtype, parameter.device)
            if not is_alike or tensor.shape != parameter.shape or not tensor.is_contiguous():
                return False
        from monolith.optim._triton_step import triton_step  # needs Triton

        triton_step(self.rule, parameters, gradients, states, self.options, self.rate)
        return True

    def _run_native(
        self,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        states: list[torch.Tensor],
    ) -> bool:
        """Run the core; return False if a state has another dtype, device, size or order."""
        native, count = load_native(), len(parameters)
        tensors = [*parameters, *gradients, *states]
        addresses, num_bytes = native.plain_buffers(tensors, _PLAIN_TYPES, torch.strided, True)
        if not addresses or num_bytes != num_bytes[:count] * (2 + NUM_STATES[self.rule]):
            return False
        sizes = [number // 4 for number in num_bytes[:count]]
        native.dense_step(
            self.rule,
            addresses[:count],
            addresses[count : 2 * count],
            addresses[2 * count :],
            sizes,
            self.options,
            float(self.rate),
            torch.get_num_threads() if sum(sizes) >= _MIN_THREADED else 1,
        )
        return True


def _bucket_of(parameter: torch.Tensor, are_few: bool) -> tuple[str, torch.dtype, bool]:
    """Return device, dtype, and whether a fused kernel exists and is faster."""
    device, dtype = parameter.device.type, parameter.dtype
    is_plain = type(parameter) in _PLAIN_TYPES and parameter.is_contiguous()
    pays = device == "cpu" or (device == "cuda" and (are_few or parameter.numel() >= _LARGE))
    return device, dtype, is_plain and pays and dtype == torch.float32


def _like(parameters: list[torch.Tensor], gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients in the dtype and memory order of their parameters."""
    return [
        gradient
        if gradient.dtype == parameter.dtype and gradient.stride() == parameter.stride()
        else torch.empty_like(parameter).copy_(gradient)
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]


@torch.library.custom_op(
    "monolith::dense_step",
    mutates_args=("parameters", "states"),
    schema="(str rule, Tensor(a!)[] parameters, Tensor[] gradients, Tensor(b!)[] states, "
    "float[] options, float rate, Tensor? rate_tensor) -> ()",
)
def _step_op(
    rule: str,
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    states: Sequence[torch.Tensor],
    options: Sequence[float],
    rate: float,
    rate_tensor: torch.Tensor | None,
) -> None:
    step = DenseStep(rule, list(options), rate if rate_tensor is None else rate_tensor)
    device = parameters[0].device.type
    step._run_fused(device, list(parameters), list(gradients), list(states))


@_step_op.register_fake
def _(*arguments: object) -> None:
    """Return nothing: the op only changes its arguments."""
