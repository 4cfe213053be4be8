"""Refusal of JSON text with deep nesting: the recursive parser of Arrow would crash."""

import numpy as np
import pyarrow as pa

_MOST = 64  # ids need 2, objects in objects a few more
_MARKS = b'[]{}"'
_OTHERS = bytes(set(range(256)) - set(_MARKS))


def check_depth(text: bytes) -> None:
    """Refuse text with deeper nesting than Arrow can parse.

    Raises:
        pa.ArrowInvalid: the text is nested too deeply; the message names the line.
    """
    if depth_of(text) <= _MOST:
        return
    depths = [depth_of(line) for line in text.split(b"\n")]
    number = depths.index(max(depths))
    raise pa.ArrowInvalid(
        f"expected JSON values nested at most {_MOST} deep, got {depth_of(text)} "
        f"(line {number + 1} of the block)"
    )


def depth_of(text: bytes) -> int:
    """Return the nesting depth of the brackets outside of strings, too large by at most 2.

    Example:
        >>> depth_of(b'{"a": [[1], "[[[["]}') in (3, 4, 5)
        True
    """
    if b"\\" in text:  # after pairs, a backslash before a quote escapes the quote
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = text.translate(None, _OTHERS)
    # Two adjacent quotes have no bracket between them, so no bracket outside of strings is lost.
    marks = marks.replace(b'""', b"").replace(b"[]", b"").replace(b"{}", b"")
    codes = np.frombuffer(marks, np.uint8)
    is_quote = codes == ord('"')
    is_begin = (codes == ord("[")) | (codes == ord("{"))
    steps = np.where(is_begin, 1, -1)
    steps[is_quote | (np.cumsum(is_quote) % 2 == 1)] = 0
    depths = np.cumsum(steps)
    lowest = np.minimum.accumulate(np.minimum(depths, 0))  # text may begin within a value
    return int((depths - lowest).max(initial=0)) + 2
