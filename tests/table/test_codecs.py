import sys

import numpy as np
import pytest
import torch

from monolith.table import FixedR8, OneBit
from monolith.table.codecs import decode, encode
from monolith.table.reference import rounding as reference_codecs
from tests.suites.table_base import assert_same_bits, floats, random_floats

STORAGES = ["fp32", "fp16", "bf16", FixedR8(), FixedR8(0.7), OneBit()]
MAX = "3.40282e+38"

SPECIAL = [0.0, -0.0, 1e-45, -1e-8, 6e-8, 65504.0, 65519.0, 65520.0, 1e30, -3.4e38]
SPECIAL += [float("inf"), -float("inf"), 0.5 / 128, -0.5 / 128, 1.5 / 128]


def many_weights(dim):
    weights = random_floats(400, dim) * torch.logspace(-9, 6, 400)[:, None]
    weights[: len(SPECIAL)] = torch.tensor(SPECIAL)[:, None]
    return weights


@pytest.mark.parametrize("storage", STORAGES, ids=str)
@pytest.mark.parametrize("dim", [1, 7, 8, 9, 33])
def test_native_codes_equal_the_reference(storage, dim):
    weights = many_weights(dim)
    codes = encode(weights, storage)
    assert_same_bits(codes, reference_codecs.encode(weights.numpy(), storage))
    decoded = torch.from_numpy(reference_codecs.decode(codes, storage, dim))
    assert_same_bits(decode(codes, storage, dim), decoded)


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_codes_of_decoded_codes_are_the_same(storage):
    codes = encode(many_weights(16), storage)
    assert_same_bits(encode(decode(codes, storage, 16), storage), codes)


@pytest.mark.parametrize("storage", ["fp16", "bf16"])
def test_every_finite_code_decodes_and_comes_back(storage):
    numbers = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)[None]
    codes = numbers.view(torch.float16 if storage == "fp16" else torch.bfloat16)
    codes = codes[codes.isfinite()][None].contiguous()
    weights = decode(codes, storage, codes.shape[1])
    assert_same_bits(weights, codes.float())
    assert_same_bits(encode(weights, storage), codes)


@pytest.mark.parametrize("fixed_range", [1e-30, 0.7, 1.0, 3.3, 1e30])
def test_every_code_of_fixed_r8_comes_back(fixed_range):
    codes = torch.arange(-128, 128).to(torch.int8)[None]
    code = FixedR8(fixed_range)
    assert_same_bits(encode(decode(codes, code, 256), code), codes)


def test_fp16_vectors():
    weights = decode(encode(floats([0.1, 0.2, 10000.0]), "fp16"), "fp16", 3)
    assert weights.tolist() == [[0.0999755859375, 0.199951171875, 10000.0]]
    assert encode(floats([65520.0, -1e9]), "fp16").tolist() == [[65504.0, -65504.0]]


def test_fixed_r8_vectors():
    codes = encode(floats([100.0, 0.0, 3.5, -100.0, float("nan")]), FixedR8(5.0))
    assert codes.tolist() == [[127, 0, 90, -128, 0]]
    weights = decode(codes, FixedR8(5.0), 5)
    assert weights.tolist() == [[4.9609375, 0.0, 3.515625, -5.0, 0.0]]


def test_one_bit_vectors():
    weights, sign = floats([100.0, 0.1, 1e-5, 0.0, -1e-5, -0.1, -100.0]), OneBit(amplitude=1.0)
    codes = encode(weights, sign)
    assert codes.tolist() == [[0b111]]
    assert decode(codes, sign, 7).tolist() == [[1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0]]


def test_nan_stays_nan_in_16_bits():
    for storage in ("fp16", "bf16"):
        codes = encode(torch.full((1, 9), float("nan")), storage)
        assert codes.isnan().all()
        assert decode(codes, storage, 9).isnan().all()


@pytest.mark.parametrize("storage", STORAGES, ids=str)
def test_without_the_compiled_core_the_codes_are_the_same(storage, monkeypatch):
    weights = many_weights(5)
    codes = encode(weights, storage)
    decoded = decode(codes, storage, 5)
    monkeypatch.setitem(sys.modules, "monolith._native", None)
    assert_same_bits(encode(weights, storage), codes)
    assert_same_bits(decode(codes, storage, 5), decoded)


def test_tanh_is_within_its_tolerance():
    x = np.linspace(-12, 12, 100_001, dtype=np.float32)
    expected = np.tanh(x.astype(np.float64))
    assert (abs(reference_codecs.tanh(x) - expected) <= 1e-6 * abs(expected)).all()


def refusal(call, error=ValueError):
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def test_storages_refuse_options_out_of_range():
    text = "[FixedR8] expected fixed_range in [1e-30, 1e+30], got {}"
    for value in (0.0, -1.0, float("nan"), 1e31):
        assert refusal(lambda v=value: FixedR8(v)) == text.format(value)
    assert refusal(lambda: OneBit(0)) == "[OneBit] expected step_size >= 1, got 0"
    for name in ("amplitude", "init_scale", "max_scale"):
        text = f"[OneBit] expected {name} in [1e-30, {MAX}], got 0.0"
        assert refusal(lambda n=name: OneBit(**{n: 0.0})) == text
    text = f"[OneBit] expected amplitude * max_scale <= {MAX}, got 1e+20 * 1e+30"
    assert refusal(lambda: OneBit(amplitude=1e20, max_scale=1e30)) == text


def test_encode_and_decode_refuse_other_tensors():
    text = "[encode, decode] expected one of fp32, fp16, bf16, FixedR8 or OneBit, got 'int8'"
    assert refusal(lambda: encode(floats([1.0]), "int8")) == text
    text = "[encode] expected weights of dtype torch.float32, got torch.float64"
    assert refusal(lambda: encode(torch.zeros(1, 1).double(), "fp16"), TypeError) == text
    text = (
        "[encode] expected weights as a contiguous matrix on device cpu, got shape (3,), "
        "strides (1,) on cpu"
    )
    assert refusal(lambda: encode(torch.zeros(3), "fp16")) == text
    text = "[decode] expected codes with 2 columns, got 1"
    codes = encode(floats([1.0]), OneBit())
    assert refusal(lambda: decode(codes, OneBit(), 9)) == text


@pytest.mark.parametrize(
    ("make", "arguments", "text"),
    [
        (FixedR8, {"fixed_range": "1"}, "[FixedR8] expected fixed_range as a number, got '1'"),
        (OneBit, {"step_size": 1.5}, "[OneBit] expected step_size as an integer, got 1.5"),
        (OneBit, {"amplitude": None}, "[OneBit] expected amplitude as a number, got None"),
        (
            encode,
            {"weights": [[1.0]], "storage": "fp16"},
            "[encode] expected weights as Tensor, got [[1.0]]",
        ),
        (
            decode,
            {"codes": floats([1.0]), "storage": "fp32", "dim": 1.0},
            "[decode] expected dim as an integer, got 1.0",
        ),
    ],
)
def test_wrong_types_are_refused_by_name(make, arguments, text):
    with pytest.raises(TypeError) as caught:
        make(**arguments)
    assert str(caught.value) == text
