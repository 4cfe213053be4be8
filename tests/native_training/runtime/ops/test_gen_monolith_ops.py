import ast
import importlib

import pytest
import torch

from monolith.ops.compiled import load_native
from tests.meta.tree import SRC, python_files

GEN_OPS = "monolith.native_training.runtime.ops.gen_monolith_ops"


def call_table(ops):
    """Row of a missing key of a table with one SGD segment, initial values 0.5."""
    segment = ops.SegmentSpec(2, "sgd", [], (0.5, 0.5), False, ("fp32", 0), ("", 0))
    table = ops.Table("user", [segment], 1, is_serving=False, non_finite="refuse", clip_value=0)
    keys, out = torch.tensor([7]), torch.empty(1, 2)
    table.lookup(keys.data_ptr(), 1, out.data_ptr(), True, [], 1)
    return out.tolist()


def call_codec(ops):
    """Weights 1 and -1 in one bit each."""
    weights, codes = torch.tensor([[1.0, -1.0]]), torch.zeros(1, 1, dtype=torch.uint8)
    ops.encode("one_bit", weights.data_ptr(), 1, 2, codes.data_ptr(), 1.0)
    return codes.tolist()


def call_rowids(ops):
    """Rows of the values of [[], [1], [2, 3]]."""
    splits, out = torch.tensor([0, 0, 1, 3]), torch.empty(3, dtype=torch.int64)
    ops.fused_value_rowids(splits.data_ptr(), 4, out.data_ptr(), 3)
    return out.tolist()


# (one call, what it may return) for each family of native ops.
FAMILY_CALLS = {
    "kernels": (lambda ops: ops.kernels_name(), ("baseline", "avx2", "avx512")),
    "codec": (call_codec, ([[1]],)),
    "ragged": (call_rowids, ([1, 2, 2],)),
    "table": (call_table, ([[0.5, 0.5]],)),
}


def native_names(tree):
    """Names of the core that a module uses: `_native.x`, or `from monolith._native import x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "monolith._native":
            yield from (alias.name for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Attribute):
            owner = node.value
            if isinstance(owner, ast.Call):
                owner = owner.func
                is_native = isinstance(owner, ast.Name) and owner.id == "load_native"
            else:
                is_native = getattr(owner, "id", getattr(owner, "attr", "")) == "_native"
            if is_native:
                yield node.attr


@pytest.mark.req("NT-GENOPS-T1")
def test_a_second_import_gives_the_same_module():
    assert importlib.import_module(GEN_OPS) is importlib.import_module(GEN_OPS)


@pytest.mark.req("NT-GENOPS-T1")
@pytest.mark.parametrize("name", [GEN_OPS, GEN_OPS + "_base"])
def test_every_public_callable_of_the_core_is_an_op(name):
    native, ops = load_native(), importlib.import_module(name)
    public = [key for key, value in vars(native).items() if key[0] != "_" and callable(value)]
    assert public
    assert all(getattr(ops, key) is getattr(native, key) for key in public)


@pytest.mark.req("NT-GENOPS-T1")
@pytest.mark.parametrize("family", FAMILY_CALLS)
def test_one_op_of_each_family_can_be_called(family):
    call, possible = FAMILY_CALLS[family]
    assert call(importlib.import_module(GEN_OPS)) in possible


def test_an_absent_op_is_named_in_the_error():
    with pytest.raises(AttributeError, match="no_such_op"):
        _ = importlib.import_module(GEN_OPS).no_such_op


@pytest.mark.req("NT-GENOPS-T3")
def test_every_native_op_that_the_package_uses_is_registered():
    trees = (ast.parse(path.read_text()) for path in python_files(SRC))
    used = {name for tree in trees for name in native_names(tree)}
    assert used - set(dir(load_native())) == set()


@pytest.mark.req("NT-GENOPS-T3")
@pytest.mark.parametrize(
    "source",
    ["_native.op", "monolith._native.op()", "load_native().op", "from monolith._native import op"],
)
def test_the_scan_finds_every_way_to_name_an_op(source):
    assert list(native_names(ast.parse(source))) == ["op"]
