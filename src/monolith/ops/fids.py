"""Feature ids: a slot and a signature in one int64.

    bits    63                    54 53                                     0
    v1      slot, 10 bits            signature, 54 bits

    bits    63  62                48 47                                     0
    v2      0   slot, 15 bits        signature, 48 bits

Fids are unsigned numbers in records and int64 in tensors, with the same bits. Every function takes
tensors of any shape on any device and works on all of them at once. Slots are checked, which on an
accelerator waits for the device; under `torch.compile` they are not.
"""

import torch

from monolith.ops.ragged import name_of

_BITS_V1, _SLOTS_V1 = 54, 1 << 10
_BITS_V2, _SLOTS_V2 = 48, 1 << 15
_MASK_V1, _MASK_V2 = (1 << _BITS_V1) - 1, (1 << _BITS_V2) - 1
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Constants of CityHash64 1.1 for 8 bytes, as signed numbers: k2, and k2 + 2 * 8.
_CITY_K2 = 0x9AE16A3B2F90404F - (1 << 64)
_CITY_MUL = _CITY_K2 + 16


def encode_fid_v1(slots: torch.Tensor | int, signatures: torch.Tensor) -> torch.Tensor:
    """Return the fids of slots below 1024; signatures keep their low 54 bits.

    Example:
        >>> encode_fid_v1(1, torch.tensor([100]))
        tensor([18014398509482084])
    """
    signatures = _int64_tensor("[encode_fid_v1]", "signatures", signatures)
    return _slot_bits(slots, _SLOTS_V1, _BITS_V1) | (signatures & _MASK_V1)


def encode_fid_v2(slots: torch.Tensor | int, signatures: torch.Tensor) -> torch.Tensor:
    """Return the fids of slots below 32768; signatures keep their low 48 bits.

    Example:
        >>> encode_fid_v2(1, torch.tensor([100]))
        tensor([281474976710756])
    """
    signatures = _int64_tensor("[encode_fid_v2]", "signatures", signatures)
    return _slot_bits(slots, _SLOTS_V2, _BITS_V2) | (signatures & _MASK_V2)


def decode_fid_v1(fids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return slots and signatures of fids v1.

    Example:
        >>> decode_fid_v1(torch.tensor([18014398509482084]))
        (tensor([1]), tensor([100]))
    """
    fids = _int64_tensor("[decode_fid_v1]", "fids", fids)
    return (fids >> _BITS_V1) & (_SLOTS_V1 - 1), fids & _MASK_V1


def decode_fid_v2(fids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return slots and signatures of int64 keys, as tables read them: key -1 has slot 32767.

    Example:
        >>> decode_fid_v2(torch.tensor([281474976710756]))
        (tensor([1]), tensor([100]))
    """
    fids = _int64_tensor("[decode_fid_v2]", "fids", fids)
    return (fids >> _BITS_V2) & (_SLOTS_V2 - 1), fids & _MASK_V2


def check_fid_v2(fids: torch.Tensor) -> torch.Tensor:
    """Return the same fids; refuse a fid with bit 63, which is reserved.

    Example:
        >>> check_fid_v2(torch.tensor([281474976710756]))
        tensor([281474976710756])
    """
    fids = _int64_tensor("[check_fid_v2]", "fids", fids)
    _check_slots((fids >> _BITS_V2) & (2 * _SLOTS_V2 - 1), _SLOTS_V2)
    return fids


def convert_fid_v1_to_v2(fids: torch.Tensor, slot: int | None = None) -> torch.Tensor:
    """Return fids v2 of fids v1, with the same or another slot; bits 48 to 53 are lost.

    Example:
        >>> convert_fid_v1_to_v2(torch.tensor([18014398509482084]))
        tensor([281474976710756])
    """
    slots, signatures = decode_fid_v1(_int64_tensor("[convert_fid_v1_to_v2]", "fids", fids))
    return encode_fid_v2(slots if slot is None else slot, signatures)


def switch_slot_v1(fids: torch.Tensor, slot: torch.Tensor | int) -> torch.Tensor:
    """Return the fids v1 with another slot and the same signatures.

    Example:
        >>> switch_slot_v1(encode_fid_v1(1, torch.tensor([100])), 2) >> 54
        tensor([2])
    """
    return encode_fid_v1(slot, _int64_tensor("[switch_slot_v1]", "fids", fids))


def switch_slot_v2(fids: torch.Tensor, slot: torch.Tensor | int) -> torch.Tensor:
    """Return the fids v2 with another slot and the same signatures.

    Example:
        >>> switch_slot_v2(encode_fid_v2(1, torch.tensor([100])), 2) >> 48
        tensor([2])
    """
    return encode_fid_v2(slot, _int64_tensor("[switch_slot_v2]", "fids", fids))


def extract_fid(values: torch.Tensor, slot: int) -> torch.Tensor:
    """Return fids v2 whose signature is the CityHash64 of the 8 bytes of each int64 value.

    Example:
        >>> extract_fid(torch.tensor([185]), 4)
        tensor([1153447759131936])
    """
    b = _int64_tensor("[extract_fid]", "values", values)
    a = b + _CITY_K2
    c = _rotate_right(b, 37) * _CITY_MUL + a
    d = (_rotate_right(a, 25) + b) * _CITY_MUL
    e = (c ^ d) * _CITY_MUL
    e = (d ^ e ^ _shift_right(e, 47)) * _CITY_MUL
    return encode_fid_v2(slot, (e ^ _shift_right(e, 47)) * _CITY_MUL)


def combine_fids_v2(left: torch.Tensor, right: torch.Tensor, slot: int) -> torch.Tensor:
    """Return fids v2 of pairs: the two halves of the signed 128-bit product, combined by XOR.

    Example:
        >>> left = encode_fid_v2(1, torch.tensor([100]))
        >>> combine_fids_v2(left, encode_fid_v2(2, torch.tensor([200])), 505)
        tensor([142144871828835872])
    """
    left = _int64_tensor("[combine_fids_v2]", "left", left)
    right = _int64_tensor("[combine_fids_v2]", "right", right)
    # Multiply halves of 32 bits: low halves are unsigned, high halves are signed.
    low = (1 << 32) - 1
    a, b = left & low, right & low
    middle = (left >> 32) * b + _shift_right(a * b, 32)
    other = a * (right >> 32) + (middle & low)
    high = (left >> 32) * (right >> 32) + (middle >> 32) + (other >> 32)
    return encode_fid_v2(slot, high ^ (left * right))


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right as an unsigned number."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _rotate_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    return _shift_right(x, bits) | (x << (64 - bits))


def _int64_tensor(where: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{where} expected {name} as a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype != torch.int64:
        raise TypeError(
            f"{where} expected {name} of dtype int64, got {name_of(tensor.dtype)}; "
            "cast with .long()"
        )
    return tensor


def _slot_bits(slots: torch.Tensor | int, limit: int, bits: int) -> torch.Tensor | int:
    """Return the slots shifted to their bits, as int64."""
    if isinstance(slots, torch.Tensor):
        if slots.dtype not in _INTEGERS:
            raise TypeError(
                f"[fids] expected slots of an integer dtype, got {name_of(slots.dtype)}"
            )
        _check_slots(slots, limit)
        return slots.long() << bits
    if not isinstance(slots, int):
        raise TypeError(f"[fids] expected a slot as an int or a tensor, got {type(slots).__name__}")
    if not 0 <= slots < limit:
        raise ValueError(_too_large(slots, limit))
    fid = slots << bits
    return fid - (1 << 64) if fid >= 1 << 63 else fid


def _check_slots(slots: torch.Tensor, limit: int) -> None:
    if torch.compiler.is_compiling() or slots.is_meta:
        return
    is_wrong = (slots < 0) | (slots >= limit)
    if is_wrong.any():
        raise ValueError(_too_large(int(slots[is_wrong][0]), limit))


def _too_large(slot: int, limit: int) -> str:
    return f"slot should be less than {limit}, while got {slot}"
