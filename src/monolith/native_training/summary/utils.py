"""Give metadata of summaries, and the architecture weights of a checkpoint."""

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from monolith.checkpoint import load
from monolith.checkpoint.dense_tensors import read_tensors
from monolith.checkpoint.storage import modified_time, read_file
from monolith.errors import NotFoundError
from monolith.observe.event_files import summary_metadata
from monolith.train.driver import current_or_default_run

PLUGIN_NAME = "monolith"
MONOLITH_NAS_DATA = "monolith_nas_weight"
MONOLITH_FI_DATA = "monolith_feature_insight"
KTYPE, KMETA, KDATA = "tag_type", "meta", "data"
ARCH_TENSOR_PREFIX = "arch_tensor"

_FILE_SUFFIX = ".safetensors"
_CACHE = "nas_weights"  # in the metadata of a run


class SummaryType:
    """Types of summaries, as the metadata and the tags of summaries name them."""

    gating = "gating"
    selecting = "selecting"
    mixed = "mixed"
    simple = "simple"
    fi_direct = "fi_direct"
    fi_train = "fi_train"


_OUT_TYPES = ("bytes", "json", "tensor")
_GROUPED = (SummaryType.gating, SummaryType.fi_train)


def create_summary_metadata(
    description: str | None = None, meta_content: str | bytes = b""
) -> bytes:
    """Return the serialized `SummaryMetadata` of TensorBoard's plugin `monolith`.

    Args:
        description: Text for readers.
        meta_content: Data for the plugin; text is encoded as UTF-8.

    Example:
        >>> create_summary_metadata("gating", '{"tag_type": "gating"}').hex()[:20]
        '0a220a086d6f6e6f6c69'
    """
    content = meta_content.encode() if isinstance(meta_content, str) else meta_content
    return summary_metadata(PLUGIN_NAME, content, description=description or "")


def _name_to_group_id(
    segment_names: Sequence[str], group_info: Iterable[Iterable[str]] | None
) -> dict[str, int]:
    """Return the number of the group of each segment: 0, 1, 2 and so on over the groups in use.

    Without groups, each segment is a group of its own.

    Example:
        >>> _name_to_group_id(["f1", "f5"], [["f1", "f2"], ["f3", "f4"], ["f5"]])
        {'f1': 0, 'f5': 1}
    """
    if group_info is None:
        return {name: number for number, name in enumerate(segment_names)}
    groups = {name: i for i, names in enumerate(group_info) for name in names}
    for name in segment_names:
        assert name in groups, f"[prepare_head] expected {name!r} in a group, got {group_info}"
    numbers = {group: i for i, group in enumerate(sorted({groups[name] for name in segment_names}))}
    return {name: numbers[groups[name]] for name in segment_names}


def prepare_head(
    segment_names: Sequence[str] | None,
    segment_sizes: Sequence[Any] | None,
    group_info: Iterable[Iterable[str]] | None = None,
    raw_tag: str | None = None,
    out_type: str = "tensor",
) -> tuple[Any, str | None]:
    """Return the head of a summary, which describes its segments, and the type of the summary.

    Args:
        segment_names: Names of the segments; without any, the head is empty.
        segment_sizes: Widths of the segments, or lists of widths to select from.
        group_info: Names of the segments of each group; None for groups of one segment.
        raw_tag: Type of the summary, of `SummaryType`; None is `gating` if all widths are numbers,
            else `selecting`.
        out_type: "bytes" for the JSON text, "tensor" for the text as a tensor of uint8, "json" for
            a dictionary.

    Returns:
        The head, and the type: `raw_tag` unless it was None and there are segments.

    Raises:
        ValueError: `out_type` is another one.
        AssertionError: A segment is in no group.

    Example:
        >>> prepare_head(["f1"], [7], raw_tag="simple", out_type="bytes")[0]
        b'{"tag_type": "simple", "segment_names": ["f1"], "segment_sizes": [7]}'
    """
    if out_type not in _OUT_TYPES:
        raise ValueError(f"[prepare_head] expected out_type of {_OUT_TYPES}, got {out_type!r}")
    head: dict[str, Any] = {}
    if segment_names and segment_sizes:
        if raw_tag is None:
            is_gating = all(isinstance(size, int) for size in segment_sizes)
            raw_tag = SummaryType.gating if is_gating else SummaryType.selecting
        names = list(segment_names)
        head = {KTYPE: raw_tag, "segment_names": names, "segment_sizes": list(segment_sizes)}
        if raw_tag in _GROUPED:
            numbers = _name_to_group_id(names, group_info)
            head["group_index"] = [numbers[name] for name in names]
    if out_type == "json":
        return head, raw_tag
    text = json.dumps(head).encode() if head else b""
    is_tensor = out_type == "tensor"
    return torch.tensor(list(text), dtype=torch.uint8) if is_tensor else text, raw_tag


def get_nas_weight_json(
    ckpt_dir_or_file: "str | os.PathLike[str]", prefix: str | None = None
) -> list[str]:
    """Return the architecture weights of a checkpoint as decimal numbers.

    They are the first variable whose name contains `prefix`, flattened; each number is the shortest
    decimal form of its float32 value. A run remembers them, and reads a newer save again.

    Args:
        ckpt_dir_or_file: Directory, whose current checkpoint is read, prefix of a checkpoint, or
            path of a safetensors file.
        prefix: Part of the name; None is `ARCH_TENSOR_PREFIX`.

    Raises:
        NotFoundError: There is no checkpoint, or no such variable in it.
        OpError: The checkpoint cannot be read.
    """
    part, path = ARCH_TENSOR_PREFIX if prefix is None else prefix, os.fspath(ckpt_dir_or_file)
    key: tuple[Any, ...]
    if path.endswith(_FILE_SUFFIX):
        key = (part, path, modified_time(path))
    else:
        checkpoint = load(path)
        checksums = [file.crc32c for file in checkpoint.manifest.dense]
        key = (part, checkpoint.prefix, *checksums)
    cache = current_or_default_run().metadata.setdefault(_CACHE, {})
    if key not in cache:
        if path.endswith(_FILE_SUFFIX):
            tensors = read_tensors(bytearray(read_file(path)), path)
            cache[key] = _decimals(tensors[_first(tensors, part)])
        else:
            name = _first(checkpoint.tensors, part)
            cache[key] = _decimals(checkpoint.read_dense([name])[name])
    return list(cache[key])


def _first(names: Iterable[str], part: str) -> str:
    for name in sorted(names):
        if part in name:
            return name
    raise NotFoundError("not arch_weights in ckpt")


def _decimals(tensor: torch.Tensor) -> list[str]:
    return [repr(float(str(number))) for number in tensor.float().reshape(-1).numpy()]
