import ast
import importlib

import pytest
import torch

from monolith.native_training import touched_key_set_ops
from monolith.native_training.optimizers import dense_updates
from monolith.native_training.runtime.ops import gen_monolith_ops as ops
from monolith.ops.compiled import load_native
from tests.meta.public_names import PUBLIC_NAMES
from tests.meta.tree import SRC, python_files

GEN_OPS = "monolith.native_training.runtime.ops.gen_monolith_ops"
HERE = "native_training.runtime.ops.gen_monolith_ops"


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
    assert importlib.import_module(GEN_OPS) is ops


@pytest.mark.req("NT-GENOPS-T1")
@pytest.mark.parametrize("name", [GEN_OPS, GEN_OPS + "_base"])
def test_the_ops_are_the_described_ones(name):
    public = {key for key in vars(importlib.import_module(name)) if key[0] != "_"} - {"load_native"}
    assert public == set(PUBLIC_NAMES[HERE])


@pytest.mark.req("NT-GENOPS-T1")
def test_touched_keys_come_out_once_and_drops_are_counted():
    handle = ops.monolith_touched_key_set(2, 1, "gen_ops")
    assert ops.monolith_touched_key_set(2, 1, "gen_ops") is handle
    ids = torch.tensor([[5, -5], [5, 9]])
    assert ops.monolith_touched_key_set_insert(handle, ids) == 0
    assert ops.monolith_touched_key_set_insert(handle, torch.tensor([1])) == 3
    assert ops.monolith_touched_key_set_steal(handle).tolist() == [1]
    assert ops.monolith_touched_key_set_steal(handle).tolist() == []


@pytest.mark.req("NT-GENOPS-T1")
def test_the_touched_key_set_uses_the_ops():
    touched = touched_key_set_ops.TouchedKeySet(1000, 1, "_gen_ops")
    ops.monolith_touched_key_set_insert(touched.handle, torch.tensor([3]))
    assert touched.steal().tolist() == [3]
    assert ops.monolith_touched_key_set(1000, 1, "MonolithTouchedKeySet_gen_ops") is touched.handle


@pytest.mark.req("NT-GENOPS-T1")
def test_row_ids_of_row_splits():
    assert ops.monolith_fused_value_rowids(torch.tensor([0, 0, 1, 3])).tolist() == [1, 2, 2]
    assert ops.monolith_fused_value_rowids(torch.tensor([0])).tolist() == []


@pytest.mark.req("NT-GENOPS-T1")
def test_tensors_are_reshaped():
    inputs = [torch.arange(6), torch.arange(4.0)]
    outputs, sizes = ops.monolith_static_reshape_n(inputs, [(None, 2), (2, 2)], False)
    assert [output.tolist() for output in outputs] == [[[0, 1], [2, 3], [4, 5]], [[0, 1], [2, 3]]]
    assert sizes.tolist() == [6, 4]


@pytest.mark.req("NT-GENOPS-T1")
@pytest.mark.parametrize("use_locking", [False, True])
def test_two_steps_of_adamom_give_the_published_numbers(use_locking):
    var, state = torch.tensor([0.1], requires_grad=True), list(torch.zeros(3, 1))
    for _ in range(2):
        ops.resource_apply_adamom(
            var, *state, 0.1, 0.99, 0.9, 1e-6, 0.01, torch.tensor([0.12]), use_locking=use_locking
        )
    assert var.item() == pytest.approx(0.07100136, abs=1e-8)
    assert [part.item() for part in state] == pytest.approx([0.02298, 0.0291114, 1.99], abs=1e-8)


@pytest.mark.req("NT-GENOPS-T1")
@pytest.mark.parametrize(
    ("use_v2", "expected"),
    [(False, [-0.07565274, 0.10770749, 0.00666807]), (True, [-0.07290278, 0.10415278, 0.06643656])],
)
def test_two_steps_of_rmsprop_give_the_published_numbers(use_v2, expected):
    var, m, v = torch.tensor([0.1]), torch.zeros(1), torch.zeros(1)
    rate, grad = torch.tensor(0.1), torch.tensor([0.12])
    for _ in range(2):
        ops.resource_apply_rmsprop(var, m, v, rate, 0.9, 0.9, 0.1, 1.0, grad, use_v2=use_v2)
    assert [part.item() for part in (var, m, v)] == pytest.approx(expected, abs=1e-8)


HANDLE = ops.monolith_touched_key_set(9, 1, "addresses")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda at: ops.monolith_touched_key_set_insert(HANDLE, at), "ids as a torch.Tensor"),
        (lambda at: ops.monolith_touched_key_set_insert(at, torch.ones(1).long()), "a handle of"),
        (ops.monolith_touched_key_set_steal, "a handle of monolith_touched_key_set, got int"),
        (ops.monolith_fused_value_rowids, "row_splits as a torch.Tensor"),
        (lambda at: ops.monolith_static_reshape_n([at], [(1,)]), "input 0 as a tensor"),
        (lambda at: ops.resource_apply_adamom(at, *range(9)), "var as a torch.Tensor"),
        (lambda at: ops.resource_apply_rmsprop(at, *range(8)), "var as a torch.Tensor"),
    ],
)
def test_no_op_takes_an_address(call, text):
    with pytest.raises(TypeError, match=text):
        call(torch.ones(1).data_ptr())


@pytest.mark.parametrize("splits", [[], [1, 2], [0, -1], [0, 2, 1]])
def test_row_splits_that_do_not_fit_are_refused(splits):
    with pytest.raises(ValueError, match=r"fused_value_rowids\] expected row_splits that "):
        ops.monolith_fused_value_rowids(torch.tensor(splits, dtype=torch.int64))


def test_a_step_with_locking_runs_while_it_holds_the_lock(monkeypatch):
    order = []

    class Lock:
        __enter__ = staticmethod(lambda: order.append("enter"))
        __exit__ = staticmethod(lambda *_: order.append("exit"))

    monkeypatch.setattr(dense_updates, "_LOCK", Lock())
    monkeypatch.setattr(dense_updates.DenseStep, "run", lambda *_: order.append("run"))
    zeros = torch.zeros(1)
    ops.resource_apply_rmsprop(*[zeros] * 3, 0.1, 0.9, 0.9, 0.1, 1.0, zeros, use_locking=True)
    ops.resource_apply_rmsprop(*[zeros] * 3, 0.1, 0.9, 0.9, 0.1, 1.0, zeros)
    assert order == ["enter", "run", "exit", "run"]


def adamom(var=None, m=None, rate=0.1, decay=0.9):
    var = torch.ones(2) if var is None else var
    zeros = torch.zeros(2, dtype=var.dtype)
    ops.resource_apply_adamom(
        var, zeros if m is None else m, zeros, zeros, rate, decay, 0.9, 1e-6, 0.0, zeros
    )


def test_a_learning_rate_that_is_no_number_is_refused():
    with pytest.raises(TypeError, match="expected learning_rate as a number, got 'fast'"):
        adamom(rate="fast")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"m": torch.zeros(1)}, r"expected m with shape, dtype and device of var, \(\(2,\), .*1,"),
        ({"m": torch.zeros(2).double()}, "expected m with shape, dtype and device of var"),
        ({"var": torch.ones(2).long()}, "expected var of a floating-point dtype, got torch.int64"),
        ({"decay": 1.5}, r"expected ada_decay in \[0, 1\], got 1.5"),
        ({"rate": -0.1}, r"expected learning_rate in \[0, 1e\+38\], got -0.1"),
        ({"rate": torch.ones(2)}, r"a tensor of one element, got shape \(2,\)"),
    ],
)
def test_arguments_of_a_step_that_do_not_fit_are_refused(options, text):
    with pytest.raises(ValueError, match=r"\[resource_apply_adamom\] .*" + text):
        adamom(**options)


def test_an_absent_op_is_named_in_the_error():
    with pytest.raises(AttributeError, match="no_such_op"):
        _ = ops.no_such_op


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
