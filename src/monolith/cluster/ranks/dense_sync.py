"""`DenseSync`: the gradients of dense parameters, added up over all ranks during backward."""

from collections.abc import Callable, Iterable, Sequence

import torch

from monolith.cluster.ranks.channel import Channel
from monolith.cluster.ranks.rank_folds import cut_by
from monolith.errors import InvalidArgumentError

_BUCKET_BYTES = 4 << 20


class _Bucket:
    """Parameters whose gradients travel in one tensor, and for each whether a rank has one.

    ```
    memory    gradients of all parameters | number of ranks with a gradient, for each | wishes
    ```
    """

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], num_wishes: int, device: torch.device
    ) -> None:
        self.parameters = list(parameters)
        self._sizes = [parameter.numel() for parameter in self.parameters]
        total, num_facts = sum(self._sizes), len(self.parameters) + num_wishes
        self.memory = torch.zeros(total + num_facts, device=device)
        self._grads, self._facts = self.memory[:total], self.memory[total:]
        self.num_missing = 0  # gradients that the backwards of this step have not made

    def fill(self, wishes: list[float]) -> None:
        """Copy the gradients of this rank; a parameter without one counts as zeros."""
        for i, part in enumerate(cut_by(self._sizes, self._grads)):
            grad = self.parameters[i].grad
            part.zero_() if grad is None else part.copy_(grad.reshape(-1))
        marks = [float(parameter.grad is not None) for parameter in self.parameters]
        self._facts.copy_(torch.tensor([*marks, *wishes], device="cpu"))

    def take(self, factor: float) -> list[float]:
        """Set the gradients to the sums times a factor, and return the sums of the wishes.

        A parameter without a gradient in all ranks has none.
        """
        if factor != 1:
            self._grads.mul_(factor)
        facts: list[float] = self._facts.tolist()
        for i, part in enumerate(cut_by(self._sizes, self._grads)):
            parameter = self.parameters[i]
            if not facts[i]:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = part.view_as(parameter).clone()
            else:
                parameter.grad.copy_(part.view_as(parameter))
        return facts[len(self.parameters) :]


class DenseSync:
    """Adds up the gradients of dense parameters over all ranks, bucket after bucket.

    A bucket is sent as soon as backward has made its gradients, and the buckets before it are sent,
    so that all ranks send in one order and the rest of backward goes on meanwhile. What one rank
    wishes for the whole job, such as its end, travels with the last bucket.

    Args:
        channel: of the dense gradients.
        parameters: trained parameters, in the same order in all ranks.
        num_wishes: number of wishes.

    Attributes:
        wishes: numbers that this rank adds in the next step.
        factor: of the sums, equal in all ranks; 1 unless it is set.
        num_bytes: number of bytes that this rank has given to all-reduce.

    Raises:
        InvalidArgumentError: a parameter is not float32, or not on the device of the first one. A
            backward raises it too, if it makes a gradient twice.
    """

    def __init__(
        self, channel: Channel, parameters: Iterable[torch.nn.Parameter], num_wishes: int
    ) -> None:
        self._channel = channel
        listed = [parameter for parameter in parameters if parameter.requires_grad]
        device = listed[0].device if listed else torch.device("cpu")
        for parameter in listed:
            if parameter.dtype != torch.float32 or parameter.device != device:
                raise InvalidArgumentError(
                    f"[DenseSync] expected float32 parameters on {device}, got {parameter.dtype} "
                    f"on {parameter.device}"
                )
        self.wishes, self.factor = [0.0] * num_wishes, 1.0
        self._buckets = _buckets_of(listed, num_wishes, device)
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket.parameters}
        self._is_armed = False
        self._num_sent = self._num_held = self.num_bytes = 0
        self._waits: list[Callable[[], None]] = []
        self._hooks = [p.register_post_accumulate_grad_hook(self._note) for p in listed]  # type: ignore[no-untyped-call]

    def broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give all ranks the values of rank 0, in place."""
        with torch.no_grad():
            for tensor in tensors:
                values = tensor.detach().contiguous()
                self._channel.broadcast(values)
                if values is not tensor:
                    tensor.copy_(values)

    def begin(self, num_backwards: int = 1, *, holds_last: bool = False) -> None:
        """Send gradients from now on as the backwards of a step make them.

        Args:
            num_backwards: number of backwards of the step, which add up their gradients.
            holds_last: whether the last bucket waits for `finish`, without which no rank has all
                sums. So a rank may still fail after its backward, and no rank makes the step.
        """
        self._is_armed, self._num_sent, self._num_held = True, 0, int(holds_last)
        self._waits = []
        for bucket in self._buckets:
            bucket.num_missing = num_backwards * len(bucket.parameters)

    def _note(self, parameter: torch.Tensor) -> None:
        if not self._is_armed:
            return
        if self._bucket_of[parameter].num_missing <= 0:  # type: ignore[index]
            raise InvalidArgumentError(
                "[DenseSync] expected a backward that makes each gradient once, got a second one "
                f"of a parameter of shape {tuple(parameter.shape)}, after its sum over ranks has "
                "begun; use torch.utils.checkpoint with use_reentrant=False"
            )
        self._bucket_of[parameter].num_missing -= 1  # type: ignore[index]
        while self._num_sent < len(self._buckets) - self._num_held:
            if self._buckets[self._num_sent].num_missing > 0:
                return
            self._send_next()

    def _send_next(self) -> None:
        bucket = self._buckets[self._num_sent]
        bucket.fill(self.wishes if bucket is self._buckets[-1] else [])
        self._num_sent += 1
        if self._channel.size > 1:
            self.num_bytes += bucket.memory.numel() * bucket.memory.element_size()
        self._waits.append(self._channel.begin_all_reduce(bucket.memory))

    def finish(self) -> list[float]:
        """Send the rest, wait for all sums, and set the gradients; return the sums of the wishes.

        A rank without data calls it after `begin`, without a backward.
        """
        while self._num_sent < len(self._buckets):
            self._send_next()
        self._is_armed = False
        wishes: list[float] = []
        for wait, bucket in zip(self._waits, self._buckets, strict=True):
            wait()
            wishes = bucket.take(self.factor)
        return wishes

    def close(self) -> None:
        """Leave the parameters alone."""
        for hook in self._hooks:
            hook.remove()


def _buckets_of(
    parameters: Sequence[torch.nn.Parameter], num_wishes: int, device: torch.device
) -> list[_Bucket]:
    """Return buckets in the order in which backward usually makes gradients: the last one first."""
    groups: list[list[torch.nn.Parameter]] = [[]]
    num_bytes = 0
    for parameter in reversed(parameters):
        if groups[-1] and num_bytes + 4 * parameter.numel() > _BUCKET_BYTES:
            groups.append([])
            num_bytes = 0
        groups[-1].append(parameter)
        num_bytes += 4 * parameter.numel()
    last = groups.pop()
    return [*(_Bucket(group, 0, device) for group in groups), _Bucket(last, num_wishes, device)]
