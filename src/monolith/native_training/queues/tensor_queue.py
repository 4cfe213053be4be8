"""Queue tuples of tensors with fixed dtypes and ranks."""

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from monolith.native_training.queues.bounded_queue import BoundedQueue
from monolith.native_training.queues.streams import DeviceCopier, Ready, mark_ready, wait_ready
from monolith.util.waiting import DEFAULT_TIMEOUT_SECONDS

Shape = Sequence[int | None]


class ElementSpec:
    """Dtypes and shapes of the tensors of an element; None stands for a size that may vary.

    Raises:
        ValueError: there are not as many shapes as dtypes, or a size is negative.
        TypeError: a dtype is none of torch.
    """

    def __init__(self, dtypes: Sequence[torch.dtype], shapes: Sequence[Shape]) -> None:
        if len(dtypes) != len(shapes):
            raise ValueError(
                "Shapes must be provided for all components, but received "
                f"{len(dtypes)} dtypes and {len(shapes)} shapes."
            )
        for dtype in dtypes:
            if not isinstance(dtype, torch.dtype):
                raise TypeError(f"[ElementSpec] expected dtypes of torch, got {dtype!r}")
        sizes = [size for shape in shapes for size in shape if size is not None]
        if any(size < 0 for size in sizes):
            raise ValueError(
                f"[ElementSpec] expected sizes of at least 0, got {list(map(list, shapes))}; "
                "None stands for a size that may vary"
            )
        self.dtypes, self.shapes = list(dtypes), [tuple(shape) for shape in shapes]
        self._ranks = [len(shape) for shape in shapes]
        self._has_sizes = bool(sizes)

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> "ElementSpec":
        """Dtypes and ranks of these tensors; every size may vary."""
        return cls([tensor.dtype for tensor in tensors], [(None,) * t.ndim for t in tensors])

    def check(self, where: str, tensors: Sequence[torch.Tensor]) -> None:
        """Refuse other tensors.

        Raises:
            ValueError: the number, a dtype or a shape differs.
        """
        if (
            [tensor.dtype for tensor in tensors] != self.dtypes
            or [tensor.ndim for tensor in tensors] != self._ranks
            or (self._has_sizes and not all(map(_fits, self.shapes, tensors)))
        ):
            raise ValueError(
                f"{where} expected {_in_words(self.dtypes, self.shapes)}, got "
                f"{_in_words([t.dtype for t in tensors], [t.shape for t in tensors])}"
            )


class TensorElement(NamedTuple):
    """Hold an element of a queue: tensors, events of their streams, and a companion."""

    tensors: tuple[torch.Tensor, ...]
    ready: Ready | None
    companion: Any = None

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor], companion: Any = None) -> "TensorElement":
        """Refer to the tensors, wherever they are; nothing is copied."""
        return cls(tuple(tensors), mark_ready(tensors), companion)

    def use(self) -> tuple[torch.Tensor, ...]:
        """The tensors, safe to use on the current streams of the calling thread."""
        wait_ready(self.tensors, self.ready)
        return self.tensors


class TensorQueue(BoundedQueue[TensorElement]):
    """Queue tuples of tensors of fixed dtypes and ranks, on any device or on one device.

    Without `device`, elements are references, and nothing is copied. With `device`, `enqueue`
    copies tensors that are elsewhere; copies from the CPU to a CUDA device run on a stream of the
    queue while the device does other work, and their sources may change as soon as `enqueue`
    returns. An element is copied before it waits for room, so that the device holds one more
    element for each producer.

    Tensors on a CUDA device may be made on one stream and used on another: `dequeue` makes the
    stream of its caller wait for that of the producer or of the queue; the host does not wait.

    Args:
        capacity: number of elements that it holds.
        spec: dtypes and shapes of an element; None takes those of the first one.
        names: of the components; elements are dictionaries then.
        name: of the queue.
        device: cpu, meta or a CUDA device, on which all tensors come out; None leaves them where
            they are.
        timeout_seconds: limit on waits; see `BoundedQueue`.
        lock_owner: see `BoundedQueue`.

    Raises:
        ValueError: there are not as many names as components, the device is not there, or see
            `BoundedQueue`.

    Example:
        >>> queue = TensorQueue(2, ElementSpec([torch.int64, torch.float32], [(None,), ()]))
        >>> queue.enqueue((torch.tensor([7, 8]), torch.tensor(0.5)))
        >>> queue.dequeue()
        (tensor([7, 8]), tensor(0.5000))
    """

    def __init__(
        self,
        capacity: int,
        spec: ElementSpec | None = None,
        *,
        names: Sequence[str] | None = None,
        name: str = "padding_fifo_queue",
        device: torch.device | str | None = None,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        lock_owner: BoundedQueue[Any] | None = None,
    ) -> None:
        super().__init__(
            capacity, name=name, timeout_seconds=timeout_seconds, lock_owner=lock_owner
        )
        if names is not None and spec is not None and len(names) != len(spec.dtypes):
            raise ValueError(
                f"[TensorQueue] expected {len(spec.dtypes)} names, one per component, "
                f"got {len(names)} (queue {name!r})"
            )
        self.spec = spec
        self.names = None if names is None else tuple(names)
        where = f"[TensorQueue] (queue {name!r})"
        self._copier = None if device is None else DeviceCopier(where, device)

    @property
    def device(self) -> torch.device | None:
        """Device on which all tensors come out; None if tensors stay where they are."""
        return None if self._copier is None else self._copier.device

    def enqueue(self, values: Any, timeout_seconds: float | None = None) -> None:
        """Put one element: a tuple or list of tensors, a dictionary with `names`, or one tensor.

        Raises:
            TypeError: something is no tensor.
            ValueError: the number, a dtype or a shape differs; or the names do; or a tensor on the
                meta device is to be copied.
            OpError: see `BoundedQueue.put`.
        """
        if self.names is not None:
            if not isinstance(values, dict) or set(values) != set(self.names):
                got = sorted(values) if isinstance(values, dict) else type(values).__name__
                raise ValueError(
                    f"[TensorQueue.enqueue] expected a dictionary of {sorted(self.names)}, "
                    f"got {got} (queue {self.name!r})"
                )
            values = [values[name] for name in self.names]
        tensors = values if isinstance(values, list | tuple) else (values,)
        self.put(self.element(tensors), timeout_seconds)

    def dequeue(self, timeout_seconds: float | None = None) -> Any:
        """Take one element: a tuple, a dictionary with `names`, the tensor itself if it is alone.

        Raises:
            OpError: see `BoundedQueue.get`.
        """
        tensors = self.get(timeout_seconds).use()
        if self.names is not None:
            return dict(zip(self.names, tensors, strict=True))
        return tensors[0] if len(tensors) == 1 else tensors

    def element(self, tensors: Sequence[torch.Tensor], companion: Any = None) -> TensorElement:
        """Check tensors, bring them to the device, and make an element of them, to be put later.

        Raises:
            TypeError: something is no tensor.
            ValueError: see `enqueue`.
        """
        where = f"[TensorQueue.enqueue] (queue {self.name!r})"
        for kind in set(map(type, tensors)):
            if not issubclass(kind, torch.Tensor):
                raise TypeError(f"{where} expected tensors, got {kind.__name__}")
        if self.spec is None:
            with self._changed:
                self.spec = self.spec or ElementSpec.of(tensors)
        self.spec.check(where, tensors)
        if self._copier is None:
            return TensorElement.of(tensors, companion)
        return TensorElement(*self._copier.copy(tensors), companion)

    def enqueue_many(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("[TensorQueue.enqueue_many] supports only enqueue and dequeue")

    def dequeue_many(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("[TensorQueue.dequeue_many] supports only enqueue and dequeue")


def _fits(shape: Shape, tensor: torch.Tensor) -> bool:
    return all(want in (None, got) for want, got in zip(shape, tensor.shape, strict=True))


def _in_words(dtypes: Sequence[torch.dtype], shapes: Sequence[Shape]) -> str:
    words = [
        f"{str(dtype).removeprefix('torch.')} {list(shape)}"
        for dtype, shape in zip(dtypes, shapes, strict=True)
    ]
    return f"{len(words)} tensors ({', '.join(words)})"
