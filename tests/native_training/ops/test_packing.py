import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from monolith.native_training.ops import get_keyed_shape, pack_tensors, packing, unpack_tensors
from tests.native_training.ops.cases import refused

DTYPES = ["float16", "bfloat16", "float32", "float64", "uint8", "int16", "int64", "bool"]
KEYED_SHAPES = st.dictionaries(
    st.text(max_size=3), st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=6
)


@pytest.fixture
def tensors():
    return {"y": torch.tensor([[4.0, 5.0], [6.0, 7.0]]), "x": torch.tensor([1.0, 2.0])}


def reference(keyed):
    """Concatenated in sorted order of keys, by Python alone."""
    names = sorted(keyed)
    flat = [number for name in names for number in keyed[name].flatten().tolist()]
    return flat, [keyed[name].numel() for name in names]


def make(shapes, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(0, 2, shape, generator=generator).to(getattr(torch, dtype))
        for name, shape in shapes.items()
    }


@pytest.mark.req("NT-TENU-T3")
@given(shapes=KEYED_SHAPES, dtype=st.sampled_from(DTYPES))
def test_a_packed_buffer_is_the_concatenation_and_unpacks_to_the_same(shapes, dtype):
    keyed = make(shapes, dtype)
    packed, sizes = pack_tensors(keyed)
    assert (packed.tolist(), sizes.tolist()) == reference(keyed)
    assert (packed.dtype, sizes.dtype) == (getattr(torch, dtype), torch.int64)
    back = unpack_tensors(get_keyed_shape(keyed), (packed, sizes))
    assert list(back) == sorted(keyed)
    assert all(torch.equal(back[name], keyed[name]) for name in keyed)


@pytest.mark.req("NT-TENU-T2")
def test_a_tensor_without_elements_goes_there_and_back():
    keyed = {"a": torch.ones(0, 3), "b": torch.ones(2), "c": torch.ones(0)}
    packed = pack_tensors(keyed)
    assert packed[1].tolist() == [0, 2, 0]
    back = unpack_tensors(get_keyed_shape(keyed), packed)
    assert {name: tuple(back[name].shape) for name in back} == {"a": (0, 3), "b": (2,), "c": (0,)}


def test_inputs_stay_as_they_are(tensors):
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    packed, _ = pack_tensors(tensors)
    packed.zero_()
    assert list(tensors) == ["y", "x"]
    assert all(torch.equal(tensors[name], before[name]) for name in tensors)


def test_unpacked_tensors_are_views_of_the_buffer(tensors):
    packed = pack_tensors(tensors)
    back = unpack_tensors(get_keyed_shape(tensors), packed)
    assert back["y"].untyped_storage().data_ptr() == packed[0].untyped_storage().data_ptr()
    assert back["y"].is_contiguous()


def test_a_part_of_a_larger_buffer_is_unpacked():
    buffer, sizes = torch.arange(9), torch.tensor([4, 2])
    shapes = {"x": (2, 1, 2), "y": (2,)}
    assert unpack_tensors(shapes, (buffer[3:], sizes))["x"].tolist() == [[[3, 4]], [[5, 6]]]
    assert unpack_tensors(shapes, (torch.arange(12)[::2], sizes))["y"].tolist() == [8, 10]


# What takes more than a copy of bytes.


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).T,
        torch.ones(1).expand(4),
        torch.tensor([1 + 2j]).conj(),
        torch.tensor([1 + 2j]).conj().imag,
        torch.nn.Parameter(torch.ones(2)),
        torch.nn.Buffer(torch.ones(2)),
        torch.ones(packing._MAX_NATIVE_BYTES // 4 + 1),
    ],
    ids=[
        "strided",
        "expanded",
        "conjugate",
        "negated",
        "parameter",
        "buffer",
        "large",
    ],
)
def test_tensors_of_every_kind_are_packed_as_torch_reads_them(tensor):
    packed, _ = pack_tensors({"a": tensor, "b": tensor})
    expected = torch.cat([tensor.reshape(-1)] * 2)
    assert torch.equal(packed.resolve_conj(), expected.resolve_conj())


def test_a_pack_is_mapped_over_batches(tensors):
    both = torch.func.vmap(lambda x: pack_tensors({"a": x, "b": x})[0])(tensors["y"])
    assert both.tolist() == [[4, 5, 4, 5], [6, 7, 6, 7]]


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own use
def test_forward_derivatives_pass_a_pack(tensors):
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(tensors["x"], torch.ones(2))
        packed = torch.autograd.forward_ad.unpack_dual(pack_tensors({"a": dual})[0])
    assert packed.tangent.tolist() == [1, 1]


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        return result * 2 if op is torch.ops.aten.cat.default else result


def test_a_dispatch_mode_sees_a_pack(tensors):
    with Doubling():
        packed, _ = pack_tensors(tensors)
    assert packed.tolist() == [2, 4, 8, 10, 12, 14]


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:.*might cause the trace")
def test_a_traced_pack_packs_other_tensors_later(tensors):
    traced = torch.jit.trace(lambda x: pack_tensors({"a": x})[0], tensors["x"])
    assert traced(torch.tensor([8.0, 9.0])).tolist() == [8, 9]


def test_a_default_device_does_not_move_a_pack(tensors):
    with torch.device("meta"):
        assert pack_tensors(tensors)[0].tolist() == [1, 2, 4, 5, 6, 7]


def test_meta_tensors_are_packed_by_shape():
    packed, sizes = pack_tensors({"a": torch.ones(2, 3, device="meta")})
    assert (packed.is_meta, packed.shape, sizes.tolist()) == (True, (6,), [6])


# Gradients.


def test_gradients_pass_a_pack():
    tensors = [torch.rand(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    pack = lambda x, y: pack_tensors({"x": x, "y": y})[0]  # noqa: E731
    assert torch.autograd.gradcheck(pack, tensors)


def test_gradients_pass_an_unpack():
    buffer = torch.rand(6, dtype=torch.float64, requires_grad=True)
    shapes, sizes = {"x": (2,), "y": (2, None)}, torch.tensor([2, 4])
    unpack = lambda x: tuple(unpack_tensors(shapes, (x, sizes)).values())  # noqa: E731
    assert torch.autograd.gradcheck(unpack, buffer)


def test_without_gradients_a_parameter_is_packed_as_bytes():
    with torch.no_grad():
        packed, _ = pack_tensors({"a": torch.nn.Parameter(torch.ones(2))})
    assert not packed.requires_grad


# What pack refuses.


@pytest.mark.parametrize(
    ("keyed", "error", "text"),
    [
        (7, TypeError, "expected a dictionary, got int"),
        (
            [torch.ones(1)],
            TypeError,
            "expected a dictionary, or pairs of a name and a tensor, got Tensor as pair 0",
        ),
        (
            [("x", torch.ones(1)), ("x", torch.ones(1))],
            ValueError,
            "expected each name once, got 'x' twice",
        ),
        ({}, ValueError, "expected at least 1 entry, got 0"),
        ({1: torch.ones(1)}, TypeError, "expected keys of type str, got int"),
        ({"x": [1.0]}, TypeError, "expected 'x' as a tensor, got list"),
        ({"a": torch.ones(1), "x": 2}, TypeError, "expected 'x' as a tensor, got int"),
        (
            {"a": torch.ones(1), "b": torch.ones(1, dtype=torch.int64)},
            TypeError,
            "expected tensors of dtype float32, that of 'a', got int64 of 'b'; "
            "group them with split_tensors_with_type",
        ),
        (
            {"a": torch.ones(1), "b": torch.ones(1, device="meta")},
            ValueError,
            "expected tensors on device cpu, that of 'a', got meta of 'b'; move with .to('cpu')",
        ),
        (
            {"a": torch.ones(1).to_sparse()},
            ValueError,
            "expected 'a' as a dense tensor, got layout sparse_coo",
        ),
        (
            {"a": torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged)},
            ValueError,
            "expected 'a' as a dense tensor, got layout nested",
        ),
    ],
)
def test_what_cannot_be_packed_is_refused(keyed, error, text):
    refused(error, f"[pack_tensors] {text}", pack_tensors, keyed)


# What unpack refuses.


@pytest.mark.parametrize(
    ("shapes", "buffer", "sizes", "text"),
    [
        (
            {"x": (2, 2)},
            torch.ones(3),
            torch.tensor([3]),
            "expected a shape for the 3 elements of 'x', got (2, 2); one dimension may be None",
        ),
        (
            {"x": (None, None)},
            torch.ones(3),
            torch.tensor([3]),
            "expected a shape for the 3 elements of 'x', got (None, None); "
            "one dimension may be None",
        ),
        (
            {"x": (2,), "y": (2,)},
            torch.ones(5),
            torch.tensor([2, 2]),
            "expected sizes that add up to 5, the elements of the buffer, got 4",
        ),
        (
            {"x": (2,), "y": (2,)},
            torch.ones(2),
            torch.tensor([2]),
            "expected a size for each of 2 shapes, got 1 sizes",
        ),
        (
            {"x": (2,), "y": (None,)},
            torch.ones(1),
            torch.tensor([2, -1]),
            "expected a shape for the -1 elements of 'y', got (None,); one dimension may be None",
        ),
        (
            {"x": (2,)},
            torch.ones(1, 2),
            torch.tensor([2]),
            "expected the buffer with 1 dimension, got shape (1, 2)",
        ),
        (
            {"x": (2,)},
            torch.ones(2),
            torch.tensor(2),
            "expected sizes with 1 dimension, got shape ()",
        ),
    ],
)
def test_what_does_not_fit_is_refused(shapes, buffer, sizes, text):
    refused(ValueError, f"[unpack_tensors] {text}", unpack_tensors, shapes, (buffer, sizes))


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (([1.0], torch.tensor([1])), "expected the buffer as a tensor, got list"),
        ((torch.ones(1), [1]), "expected sizes as a tensor, got list"),
        ((torch.ones(1), torch.ones(1)), "expected sizes of dtype int64 or int32, got float32"),
    ],
)
def test_what_is_no_pack_is_refused(packed, text):
    refused(TypeError, f"[unpack_tensors] {text}", unpack_tensors, {"x": (1,)}, packed)


# Compiled.


def test_a_compiled_function_packs_and_differentiates(compiled, tensors):
    tensors["x"].requires_grad_()
    packed, sizes = compiled(pack_tensors)(tensors)
    assert (packed.tolist(), sizes.tolist()) == ([1, 2, 4, 5, 6, 7], [2, 4])
    (packed * torch.arange(6.0)).sum().backward()
    assert tensors["x"].grad.tolist() == [0, 1]


def test_a_compiled_function_unpacks_and_differentiates(compiled):
    buffer = torch.arange(6.0, requires_grad=True)
    shapes = {"x": (2,), "y": (None, 2)}
    back = compiled(lambda packed: unpack_tensors(shapes, packed))((buffer, torch.tensor([2, 4])))
    assert back["y"].tolist() == [[2, 3], [4, 5]]
    (back["y"] * 2).sum().backward()
    assert buffer.grad.tolist() == [0, 0, 2, 2, 2, 2]


def test_a_compiled_function_reads_sizes_where_shapes_do_not_tell(compiled):
    shapes = {"x": (None,), "y": (None, 2)}
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        unpack = compiled(lambda packed: unpack_tensors(shapes, packed))
        back = unpack((torch.arange(6), torch.tensor([2, 4])))
    assert [back["x"].tolist(), back["y"].tolist()] == [[0, 1], [[2, 3], [4, 5]]]


def test_a_compiled_function_refuses_other_dtypes(compiled):
    keyed = {"a": torch.ones(1), "b": torch.ones(1, dtype=torch.int64)}
    with pytest.raises(Exception, match="group them with split_tensors_with_type"):
        compiled(pack_tensors)(keyed)


def test_many_tensors_are_packed():
    keyed = {f"{i:03}": torch.full((i % 7, 3), float(i)) for i in range(300)}
    packed, sizes = pack_tensors(keyed)
    assert (packed.tolist(), sizes.tolist()) == reference(keyed)
