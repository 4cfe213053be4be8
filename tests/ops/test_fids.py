import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from monolith.ops import fids
from tests.native_training.ops.cases import refused

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def tensor(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


def unsigned(number):
    return number & ((1 << 64) - 1)


def signed(number):
    return number - (1 << 64) if number >= 1 << 63 else number


@pytest.mark.parametrize(
    ("encode", "decode", "slot", "signature", "expected"),
    [
        (fids.encode_fid_v1, fids.decode_fid_v1, 1, 100, 100),
        (fids.encode_fid_v1, fids.decode_fid_v1, 1023, 1 << 54, 0),
        (fids.encode_fid_v2, fids.decode_fid_v2, 1, 100, 100),
        (fids.encode_fid_v2, fids.decode_fid_v2, 123, 7, 7),
        (fids.encode_fid_v2, fids.decode_fid_v2, 1024, 1 << 54, 0),
        (fids.encode_fid_v2, fids.decode_fid_v2, 32767, 1 << 48, 0),
    ],
)
def test_vectors_of_the_reference(encode, decode, slot, signature, expected):
    found = decode(encode(slot, tensor(signature)))
    assert [part.tolist() for part in found] == [[slot], [expected]]


def test_numbers_of_the_reference():
    assert fids.encode_fid_v1(1, tensor(100)).tolist() == [18014398509482084]
    assert fids.encode_fid_v2(1, tensor(100)).tolist() == [281474976710756]
    assert fids.convert_fid_v1_to_v2(tensor(18014398509482084)).tolist() == [281474976710756]
    assert fids.extract_fid(tensor(185), 4).tolist() == [1153447759131936]


@given(slot=st.integers(0, 1023), signature=INT64)
def test_v1_is_the_slot_above_54_bits(slot, signature):
    expected = signed((slot << 54) | (unsigned(signature) & ((1 << 54) - 1)))
    fid = fids.encode_fid_v1(slot, tensor(signature))
    assert fid.tolist() == [expected]
    assert torch.equal(fids.encode_fid_v1(tensor(slot), tensor(signature)), fid)
    slots, signatures = fids.decode_fid_v1(fid)
    assert (slots.tolist(), signatures.tolist()) == ([slot], [signature & ((1 << 54) - 1)])


@given(slot=st.integers(0, 32767), signature=INT64)
def test_v2_is_the_slot_above_48_bits(slot, signature):
    expected = (slot << 48) | (unsigned(signature) & ((1 << 48) - 1))
    fid = fids.encode_fid_v2(slot, tensor(signature))
    assert fid.tolist() == [expected]
    assert torch.equal(fids.encode_fid_v2(tensor(slot).int(), tensor(signature)), fid)
    slots, signatures = fids.decode_fid_v2(fids.check_fid_v2(fid))
    assert (slots.tolist(), signatures.tolist()) == ([slot], [signature & ((1 << 48) - 1)])


@given(fid=INT64)
def test_a_conversion_keeps_slot_and_low_bits(fid):
    bits = unsigned(fid)
    converted = fids.convert_fid_v1_to_v2(tensor(fid))
    assert converted.tolist() == [((bits >> 54) << 48) | (bits & ((1 << 48) - 1))]


def test_a_conversion_takes_another_slot():
    assert fids.convert_fid_v1_to_v2(tensor(18014398509482084), 7).tolist() == [(7 << 48) | 100]


@given(fid=INT64)
def test_a_switched_slot_keeps_the_signature(fid):
    for switch, decode in (
        (fids.switch_slot_v1, fids.decode_fid_v1),
        (fids.switch_slot_v2, fids.decode_fid_v2),
    ):
        slots, signatures = decode(switch(tensor(fid), 1000))
        assert slots.tolist() == [1000]
        assert torch.equal(signatures, decode(tensor(fid))[1])


def test_a_negative_key_has_a_slot_too():
    assert fids.decode_fid_v2(tensor(-1))[0].tolist() == [32767]
    assert fids.decode_fid_v1(tensor(-1))[0].tolist() == [1023]


def city_hash_of_8_bytes(number):
    """CityHash64 1.1 in Python's integers."""
    mask, k2 = (1 << 64) - 1, 0x9AE16A3B2F90404F
    mul = k2 + 16

    def rotate(x, n):
        return ((x >> n) | (x << (64 - n))) & mask

    b = unsigned(number)
    a = (b + k2) & mask
    c = (rotate(b, 37) * mul + a) & mask
    d = ((rotate(a, 25) + b) * mul) & mask
    x = ((c ^ d) * mul) & mask
    x ^= x >> 47
    y = ((d ^ x) * mul) & mask
    y ^= y >> 47
    return (y * mul) & mask


def test_the_hash_of_185_is_that_of_the_reference():
    assert city_hash_of_8_bytes(185) == 0xB52C190DFBF33520


@given(value=INT64, slot=st.integers(0, 32767))
def test_an_extracted_fid_has_48_bits_of_the_hash_and_the_slot(value, slot):
    expected = (slot << 48) | (city_hash_of_8_bytes(value) & ((1 << 48) - 1))
    assert fids.extract_fid(tensor(value), slot).tolist() == [expected]


def test_any_shape_is_kept():
    slots, values = torch.arange(2).reshape(2, 1), torch.arange(3)
    assert fids.encode_fid_v2(slots, values).shape == (2, 3)
    assert fids.encode_fid_v2(5, tensor()).shape == (0,)


@pytest.mark.parametrize("slot", [1024, 32768, -1])
def test_a_slot_beyond_v1_is_refused(slot):
    text = f"slot should be less than 1024, while got {slot}"
    refused(ValueError, text, fids.encode_fid_v1, slot, tensor(7))
    refused(ValueError, text, fids.encode_fid_v1, tensor(3, slot), tensor(7))


@pytest.mark.parametrize("slot", [32768, 1 << 40, -1])
def test_a_slot_beyond_v2_is_refused(slot):
    text = f"slot should be less than 32768, while got {slot}"
    refused(ValueError, text, fids.encode_fid_v2, slot, tensor(7))
    refused(ValueError, text, fids.encode_fid_v2, tensor(3, slot), tensor(7))


def test_the_reserved_bit_is_refused():
    fid = signed((1 << 63) | (5 << 48) | 100)
    text = "slot should be less than 32768, while got 32773"
    refused(ValueError, text, fids.check_fid_v2, tensor(1, fid))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: fids.encode_fid_v1(1, x), "[encode_fid_v1] expected signatures"),
        (lambda x: fids.encode_fid_v2(1, x), "[encode_fid_v2] expected signatures"),
        (fids.decode_fid_v1, "[decode_fid_v1] expected fids"),
        (fids.decode_fid_v2, "[decode_fid_v2] expected fids"),
        (fids.check_fid_v2, "[check_fid_v2] expected fids"),
        (fids.convert_fid_v1_to_v2, "[convert_fid_v1_to_v2] expected fids"),
        (lambda x: fids.switch_slot_v1(x, 1), "[switch_slot_v1] expected fids"),
        (lambda x: fids.switch_slot_v2(x, 1), "[switch_slot_v2] expected fids"),
        (lambda x: fids.extract_fid(x, 1), "[extract_fid] expected values"),
        (lambda x: fids.combine_fids_v2(x, tensor(1), 1), "[combine_fids_v2] expected left"),
        (lambda x: fids.combine_fids_v2(tensor(1), x, 1), "[combine_fids_v2] expected right"),
    ],
)
def test_fids_are_int64_tensors(call, name):
    refused(
        TypeError, f"{name} of dtype int64, got int32; cast with .long()", call, tensor(1).int()
    )
    refused(TypeError, f"{name} as a torch.Tensor, got int", call, 1)


def test_slots_are_integers():
    text = "[fids] expected slots of an integer dtype, got float32"
    refused(TypeError, text, fids.encode_fid_v1, torch.ones(1), tensor(7))
    text = "[fids] expected a slot as an int or a tensor, got float"
    refused(TypeError, text, fids.encode_fid_v2, 1.0, tensor(7))


def test_a_compiled_function_encodes_and_decodes(compiled):
    def both(slots, values):
        return fids.decode_fid_v2(fids.convert_fid_v1_to_v2(fids.encode_fid_v1(slots, values)))

    slots, signatures = compiled(both)(tensor(1, 1023), tensor(100, 5))
    assert (slots.tolist(), signatures.tolist()) == ([1, 1023], [100, 5])


def test_a_compiled_function_extracts_fids(compiled):
    assert compiled(lambda x: fids.extract_fid(x, 4))(tensor(185)).tolist() == [1153447759131936]


@given(INT64, INT64)
def test_a_combined_fid_folds_the_signed_product(left, right):
    folded = unsigned(left * right) ^ unsigned((left * right) >> 64)
    expected = (505 << 48) | (folded & ((1 << 48) - 1))
    assert fids.combine_fids_v2(tensor(left), tensor(right), 505).tolist() == [expected]


def test_a_combined_fid_of_the_reference():
    left, right = fids.encode_fid_v2(1, tensor(100)), fids.encode_fid_v2(2, tensor(200))
    assert fids.combine_fids_v2(left, right, 505).tolist() == [142144871828835872]
