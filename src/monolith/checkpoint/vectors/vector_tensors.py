"""Read matrices of vectors from the files of torch and safetensors, slice by slice."""

import contextlib
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from monolith.checkpoint.manifest import TensorFact
from monolith.checkpoint.vectors.vector_chunk import Keys, VectorChunk, num_distinct, repeated_rows
from monolith.errors import DataLossError, InvalidArgumentError, NotFoundError

_TORCH_SUFFIXES, _SAFETENSORS = (".pt", ".pth"), ".safetensors"
_DTYPES = ("float32", "float16", "bfloat16")
_KINDS = MappingProxyType({"F32": "float32", "F16": "float16", "BF16": "bfloat16"})
_ZIP = b"PK\x03\x04"  # begin of what torch.save writes since 1.6; only such files can be mapped
_MAX_SHOWN = 20  # matrices in a message
_ALONE = ""  # name of a tensor that is the whole file


class TensorFile(Protocol):
    """An open file of tensors.

    Attributes:
        facts: Dtype and shape of each tensor by name.
    """

    facts: Mapping[str, TensorFact]

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Return rows `start` to `stop` of a tensor."""


class _TorchFile:
    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self.facts: Mapping[str, TensorFact] = {
            name: TensorFact(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for name, tensor in tensors.items()
        }

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        return self._tensors[name].detach()[start:stop]


class _Safetensors:
    def __init__(self, file: Any) -> None:
        self._slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        self.facts: Mapping[str, TensorFact] = {
            name: TensorFact(
                _KINDS.get(part.get_dtype(), part.get_dtype()), tuple(part.get_shape())
            )
            for name, part in self._slices.items()
        }

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        rows: torch.Tensor = self._slices[name][start:stop]
        return rows


@contextlib.contextmanager
def open_tensors(path: str) -> Iterator[TensorFile]:
    """Open a file of `torch.save` or of safetensors without a copy of its tensors.

    Code in the file never runs: `torch.load` is called with `weights_only=True`.

    Raises:
        NotFoundError: There is no such file.
        InvalidArgumentError: The name has another end, or the file is a pickle of other things.
        DataLossError: The file is damaged.
    """
    place = Path(path)
    if not place.is_file():
        raise NotFoundError(f"[import] expected a file of tensors, got none at {path!r}")
    if place.suffix == _SAFETENSORS:
        with contextlib.ExitStack() as stack:
            try:
                file = _Safetensors(stack.enter_context(safe_open(path, "pt")))
            except SafetensorError as error:
                raise DataLossError(
                    f"[import] expected a whole safetensors file, got {error} ({path})"
                ) from error
            yield file
        return
    if place.suffix not in _TORCH_SUFFIXES:
        raise InvalidArgumentError(
            f"[import] expected a file that ends in .pt, .pth or .safetensors, got {path!r}"
        )
    yield _TorchFile(dict(_tensors_of(_load(place))))


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        can_map = file.read(len(_ZIP)) == _ZIP
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of foreign pickles, which are refused
            return torch.load(path, map_location="cpu", weights_only=True, mmap=can_map)
    except pickle.UnpicklingError as error:
        names = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise InvalidArgumentError(
            "[import] expected a file of tensors, as torch.save(model.state_dict(), path) writes, "
            f"got a pickle of {names[1] if names else 'other things'}, which may run code and is "
            f"not loaded ({path}); save the state_dict() of the model instead"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, LookupError, AttributeError) as error:
        reason = str(error).partition(". This")[0] or type(error).__name__
        raise DataLossError(
            f"[import] expected a whole file of torch.save, got: {reason} ({path})"
        ) from error


def _tensors_of(value: Any, name: str = _ALONE) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of nested mappings; their names are joined by dots, as in a state_dict."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors_of(item, f"{name}.{key}" if name else str(key))


def matrix_name(facts: Mapping[str, TensorFact], name: str | None, path: str) -> str:
    """Return the name of the matrix of vectors among the tensors of a file.

    Args:
        facts: Dtype and shape of each tensor.
        name: Name that the user chose; None takes the only matrix.
        path: Path of the file, for messages.

    Raises:
        InvalidArgumentError: The choice is not clear, or no matrix of floats.
    """
    matrices = {key: fact for key, fact in facts.items() if len(fact.shape) == 2}
    shown = [f"{key} {'x'.join(map(str, fact.shape))}" for key, fact in matrices.items()]
    listed = ", ".join([*shown[:_MAX_SHOWN], *["..."] * (len(shown) > _MAX_SHOWN)]) or "none"
    if name is None and len(matrices) != 1:
        raise InvalidArgumentError(
            f"[import] expected one matrix in {path}, got {listed}; choose one with --tensor"
        )
    name = next(iter(matrices)) if name is None else name
    if name not in matrices:
        near = get_close_matches(name, matrices, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the matrices are {listed}"
        got = f"a tensor of shape {tuple(facts[name].shape)}" if name in facts else "none"
        raise InvalidArgumentError(
            f"[import] expected a matrix named {name!r} in {path}, got {got}; {hint}"
        )
    if facts[name].dtype not in _DTYPES:
        raise InvalidArgumentError(
            f"[import] expected vectors of {', '.join(_DTYPES)}, got {facts[name].dtype} (tensor "
            f"{name!r} in {path}); save tensor.float()"
        )
    return name


class TensorVectors:
    """The rows of a matrix in a file of tensors, each with its key.

    Args:
        file: Open file.
        name: Name of the matrix.
        keys: Keys of the rows, in their order.
        where: Name of the keys' file, for messages.
        path: Path of the file of tensors, for messages.
        time: Time of all rows in seconds since 1970; None if unknown.

    Raises:
        InvalidArgumentError: The number of keys is not that of the rows, or a key occurs twice.
    """

    def __init__(
        self,
        file: TensorFile,
        name: str,
        keys: Keys,
        *,
        where: str,
        path: str,
        time: int | None = None,
    ) -> None:
        self.num_rows, self.dim = file.facts[name].shape
        self.where = f"tensor {name!r} in {path}" if name else path
        if len(keys) != self.num_rows:
            raise InvalidArgumentError(
                f"[import] expected {self.num_rows} keys, one for each row of {self.where}, got "
                f"{len(keys)} in {where}"
            )
        self.num_keys = num_distinct(keys)
        if self.num_keys != self.num_rows:
            first, second = repeated_rows(keys)
            raise InvalidArgumentError(
                f"[import] expected each key once, got key {keys[first]} in row {first} and in row "
                f"{second} of {where} (counted from 0)"
            )
        self._file, self._name, self._keys, self._time = file, name, keys, time

    def chunks(self, chunk_rows: int) -> Iterator[VectorChunk]:
        """Yield all vectors in their order, at most `chunk_rows` at a time."""
        for start in range(0, self.num_rows, chunk_rows):
            stop = min(start + chunk_rows, self.num_rows)
            keys = torch.from_numpy(self._keys[start:stop])
            vectors = self._file.read(self._name, start, stop).to(torch.float32).contiguous()
            times = None if self._time is None else torch.full_like(keys, self._time)
            yield VectorChunk(keys, vectors, times, self.where, start)
