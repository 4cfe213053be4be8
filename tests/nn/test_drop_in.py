"""What the torch class does and what ours does: one test per line of docs/drop_in.md.

`python -m tools.drop_in_table` writes the page's table from the facts here.
"""

import copy
import io
import math
import types

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from monolith.nn import Embedding, EmbeddingBag
from monolith.nn.options import REFUSED_ARGUMENTS, REFUSED_ATTRIBUTES
from monolith.optim import Optimizer
from monolith.table.optimizers import SGD, Adam

NUM_IDS = 10
IDS, OFFSETS = torch.tensor([1, 2, 2, 5]), torch.tensor([0, 3])
FAR = torch.tensor([[NUM_IDS]])  # one id beyond the torch class's last


def fact(subject, torch_class, ours="the same"):
    """Notes what a test shows."""

    def note(test):
        test.fact = (subject, torch_class, ours)
        return test

    return note


def pair(**options):
    """A torch bag and ours with the same rows; both trained by SGD with rate 1."""
    options = {"mode": "sum", **options}
    theirs = torch.nn.EmbeddingBag(NUM_IDS, 3, **options)
    ours = EmbeddingBag.from_pretrained(theirs.weight, freeze=False, optimizer=SGD(1.0), **options)
    return theirs, ours


def weights_of(ours):
    return ours.table.lookup(torch.arange(NUM_IDS))


def assert_equal_output(theirs, ours, *arguments):
    torch.testing.assert_close(ours(*arguments), theirs(*arguments))


@fact("ids (n,) with `offsets`", "a row per bag")
def test_ids_and_offsets():
    assert_equal_output(*pair(), IDS, OFFSETS)


@fact("ids (bags, ids of each)", "a row per bag")
def test_a_matrix():
    assert_equal_output(*pair(), IDS.reshape(2, 2))


@fact("`include_last_offset`", "the last offset is the number of ids")
def test_include_last_offset():
    assert_equal_output(*pair(include_last_offset=True), IDS, torch.tensor([0, 3, 4]))


@fact("`mode`", "`sum`, `mean` (default), `max`", "the same, and `sqrtn`")
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_modes(mode):
    assert_equal_output(*pair(mode=mode), IDS, OFFSETS)
    assert torch.nn.EmbeddingBag(1, 1).mode == EmbeddingBag(1).mode == "mean"


@fact("an empty bag", "zeros")
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_an_empty_bag(mode):
    assert_equal_output(*pair(mode=mode), IDS, torch.tensor([0, 0, 4]))


@fact("`padding_idx`", "left out of the bag, not trained")
def test_padding_idx():
    assert_equal_output(*pair(mode="mean", padding_idx=2), IDS, OFFSETS)


@fact("`padding_idx` of `Embedding`", "a row of zeros that can be changed", "zeros, always")
def test_padding_idx_of_an_embedding():
    theirs = torch.nn.Embedding(NUM_IDS, 3, padding_idx=2)
    torch.nn.init.ones_(theirs.weight)
    ours = Embedding.from_pretrained(theirs.weight, padding_idx=2)
    assert theirs(torch.tensor(2)).tolist() == [1.0, 1.0, 1.0]
    assert ours(torch.tensor(2)).tolist() == [0.0, 0.0, 0.0]


@fact("a negative `padding_idx`", "counts from the last row", "a key like any other")
def test_a_negative_padding_idx():
    theirs = torch.nn.EmbeddingBag(NUM_IDS, 3, padding_idx=-1)
    ours = EmbeddingBag(3, padding_idx=-1)
    assert theirs.padding_idx == NUM_IDS - 1
    assert ours.padding_idx == -1
    assert ours(torch.tensor([[-1]])).tolist() == [[0.0, 0.0, 0.0]]


@fact("`per_sample_weights`", "with mode `sum`; they get gradients")
def test_per_sample_weights():
    found = []
    for bag in pair():
        weights = torch.full((4,), 0.5, requires_grad=True)
        bag(IDS, OFFSETS, weights).square().sum().backward()
        found.append(weights.grad)
    torch.testing.assert_close(*found)


@fact("int32 ids", "taken", "the same; widened to int64")
def test_int32_ids():
    assert_equal_output(*pair(), IDS.int(), OFFSETS.int())


@fact("an id without a row", "an error", "its initial row; a row with its first step")
def test_an_id_without_a_row():
    theirs, ours = pair()
    with pytest.raises((IndexError, RuntimeError)):
        theirs(FAR)
    ours(FAR).sum().backward()
    ours.step()
    assert len(ours.table) == NUM_IDS + 1


@fact("a negative id", "an error", "a key like any other")
def test_a_negative_id():
    theirs, ours = pair()
    with pytest.raises((IndexError, RuntimeError)):
        theirs(-FAR)
    assert ours(-FAR).shape == (1, 3)


@fact("`offsets` that decrease", "undefined", "`ValueError`")
def test_offsets_that_decrease():
    with pytest.raises(ValueError, match="offsets that do not decrease"):
        pair()[1](IDS, torch.tensor([0, 3, 2]))


@fact(
    "ids on an accelerator", "taken, with the weight there", "`ValueError`: rows are in main memory"
)
def test_ids_elsewhere():
    with pytest.raises(ValueError, match="move with"):
        pair()[1](IDS.to("meta"), OFFSETS)


@fact("initial rows", "N(0, 1), from torch's generator", "uniform in [-0.05, 0.05), from a seed and the id; the seed comes from torch's generator")  # fmt: skip  # noqa: E501
def test_initial_rows():
    torch.manual_seed(0)
    first = Embedding(64)(torch.arange(100))
    torch.manual_seed(0)
    assert torch.equal(Embedding(64)(torch.arange(100)), first)
    assert -0.05 <= first.min() < -0.04
    assert torch.nn.Embedding(100, 64).weight.std() > 0.9


@fact("`backward`", "gradients in `weight.grad`", "gradients queued on the table; `anchor.grad` is their norm")  # fmt: skip  # noqa: E501
def test_backward():
    theirs, ours = pair()
    for bag in (theirs, ours):
        bag(IDS, OFFSETS).sum().backward()
    assert ours.anchor.grad.item() == pytest.approx(theirs.weight.grad.norm().item())


@fact("`step` of the optimizer", "gradients stay until `zero_grad`", "gradients are applied once")
def test_a_step():
    theirs, ours = pair()
    theirs_optimizer, ours_optimizer = torch.optim.SGD(theirs.parameters(), lr=1.0), Optimizer(ours)
    for bag, optimizer in ((theirs, theirs_optimizer), (ours, ours_optimizer)):
        bag(IDS, OFFSETS).sum().backward()
        optimizer.step()
    torch.testing.assert_close(weights_of(ours), theirs.weight.detach())
    before = weights_of(ours)
    ours_optimizer.step()
    assert torch.equal(weights_of(ours), before)


@fact(
    "rows that no batch touched",
    "moved by Adam and by momentum, unless `sparse=True`",
    "never moved",
)
def test_rows_that_no_batch_touched():
    theirs = torch.nn.EmbeddingBag(NUM_IDS, 3, mode="sum")
    ours = EmbeddingBag.from_pretrained(theirs.weight, freeze=False, optimizer=Adam(), mode="sum")
    optimizer = torch.optim.Adam(theirs.parameters())
    seen = []
    for ids in (IDS, IDS[:1]):
        for bag, step in ((theirs, optimizer.step), (ours, ours.step)):
            bag(ids, OFFSETS[:1]).sum().backward()
            step()
        optimizer.zero_grad()
        seen.append((theirs.weight[5].tolist(), weights_of(ours)[5].tolist()))
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] == seen[1][1]


@fact("`zero_grad`, `no_grad`, accumulation, `requires_grad_(False)`", "as in every module")
def test_gradients_are_kept_and_dropped_alike():
    theirs, ours = pair()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1.0)
    for bag in (theirs, ours):
        bag(IDS, OFFSETS).sum().backward()
        bag.zero_grad()
        for _ in range(2):
            bag(IDS, OFFSETS).sum().backward()
        with torch.no_grad():
            assert not bag(IDS, OFFSETS).requires_grad
        assert not bag.requires_grad_(False)(IDS, OFFSETS).requires_grad
        bag.requires_grad_(True)
    optimizer.step()
    ours.step()
    torch.testing.assert_close(weights_of(ours), theirs.weight.detach())


@fact("`eval()`", "as in training", "ids without a row read zeros; nothing is queued")
def test_eval():
    theirs, ours = pair()
    assert theirs.eval()(IDS, OFFSETS).requires_grad
    assert not ours.eval()(IDS, OFFSETS).requires_grad
    assert ours(FAR).tolist() == [[0.0, 0.0, 0.0]]


@fact("`backward` twice without `retain_graph`", "`RuntimeError`")
def test_backward_twice():
    for bag in pair():
        loss = bag(IDS, OFFSETS).square().sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()


@fact("`clip_grad_norm_`, `GradScaler`, schedulers of torch", "work", "the same, with `monolith.optim.Optimizer`")  # fmt: skip  # noqa: E501
def test_clipping():
    theirs, ours = pair()
    for bag in (theirs, ours):
        (bag(IDS, OFFSETS) + bag(IDS, OFFSETS)).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(bag.parameters(), 0.1)
    torch.optim.SGD(theirs.parameters(), lr=1.0).step()
    Optimizer(ours).step()
    torch.testing.assert_close(weights_of(ours), theirs.weight.detach())


@fact("`clip_grad_norm_` with another `norm_type`", "of that norm", "takes the L2 norm of the table for it; use 2, the default")  # fmt: skip  # noqa: E501
def test_clipping_by_another_norm():
    theirs, ours = pair()
    for bag in (theirs, ours):
        bag(IDS, OFFSETS).sum().backward()
    expected = theirs.weight.grad.norm()
    norms = [torch.nn.utils.clip_grad_norm_(b.parameters(), 9.0, math.inf) for b in (theirs, ours)]
    assert norms[0] == theirs.weight.grad.max()
    torch.testing.assert_close(norms[1], expected)


@fact("`clip_grad_value_`", "cuts each element", "scales the table to that L2 norm; cut in a hook, `output.register_hook(lambda g: g.clamp(-1, 1))`")  # fmt: skip  # noqa: E501
def test_clipping_by_value():
    ours = pair()[1]
    ours(IDS, OFFSETS).sum().backward()
    torch.nn.utils.clip_grad_value_(ours.parameters(), 0.5)
    assert ours.queue.norm == pytest.approx(0.5)
    ours.zero_grad()
    output = ours(IDS[:1], OFFSETS[:1])
    output.register_hook(lambda g: g.clamp(-1, 1))
    (output * 7).sum().backward()
    assert ours.queue.norm == pytest.approx(3**0.5)


@fact("`AveragedModel` of `torch.optim.swa_utils`", "averages the weight", "averages the dense parameters; the table of the copy stays as it was copied")  # fmt: skip  # noqa: E501
def test_an_averaged_model():
    ours = pair()[1]
    averaged, before = AveragedModel(ours), weights_of(ours)
    ours(IDS, OFFSETS).sum().backward()
    ours.step()
    averaged.update_parameters(ours)
    assert torch.equal(weights_of(averaged.module), before)
    assert not torch.equal(weights_of(ours), before)


@fact("`DistributedDataParallel`", "averages gradients over ranks", "`RuntimeError`; wrap the dense part alone: each rank then has tables of its own")  # fmt: skip  # noqa: E501
def test_distributed_data_parallel(monkeypatch):
    ours = pair()[1]
    running = types.SimpleNamespace(_module_parameters=list(ours.parameters()))
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", running)
    with pytest.raises(RuntimeError, match="wrap the dense part alone"):
        ours(IDS, OFFSETS)


@fact("`torch.jit.trace`", "the rows become part of the program", "`RuntimeError`; use `torch.export`")  # fmt: skip  # noqa: E501
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_trace():
    with pytest.raises(RuntimeError, match=r"use torch\.export"):
        torch.jit.trace(pair()[1], (IDS, OFFSETS))


@pytest.mark.thorough
@fact("`torch.compile(fullgraph=True)`", "works")
def test_compile():
    torch._dynamo.reset()
    ours = pair()[1]
    run = torch.compile(ours, fullgraph=True, backend="aot_eager")
    assert torch.equal(run(IDS, OFFSETS), ours(IDS, OFFSETS))


@fact("`torch.export`", "the rows become part of the program", "an op that finds the module's table, in this process")  # fmt: skip  # noqa: E501
def test_export():
    program = torch.export.export(pair()[1].eval(), (IDS, OFFSETS))
    assert "monolith.lookup" in str(program.graph)


@fact("`copy.deepcopy`, `pickle`, `torch.save(model)`", "a weight of its own", "a table of its own; modules that share one share the copy")  # fmt: skip  # noqa: E501
def test_a_copy():
    ours = pair()[1]
    twin = copy.deepcopy(ours)
    twin.table.clear()
    assert len(ours.table) == NUM_IDS


@fact(
    "`state_dict`",
    "`weight`",
    "`anchor` and `_extra_state`: rows, optimizer state, times, counters",
)
def test_state_dict():
    theirs, ours = pair()
    assert list(theirs.state_dict()) == ["weight"]
    assert list(ours.state_dict()) == ["anchor", "_extra_state"]
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    other = EmbeddingBag(3, optimizer=SGD(1.0))
    other.load_state_dict(torch.load(file))
    assert torch.equal(weights_of(other), weights_of(ours))


@fact("`from_pretrained(weights)`", "frozen rows 0, 1, 2 ...", "the same, and `from_pretrained(weights, keys)`")  # fmt: skip  # noqa: E501
def test_from_pretrained():
    theirs, ours = (
        cls.from_pretrained(torch.rand(4, 3)) for cls in (torch.nn.Embedding, Embedding)
    )
    assert not any(p.requires_grad for p in (*theirs.parameters(), *ours.parameters()))
    assert Embedding.from_pretrained(torch.ones(1, 3), torch.tensor([-9]))(FAR * 0 - 9).sum() == 3


@fact("`.to(device)`, `.half()`", "move and cast the weight", "leave the rows: float32 outputs in main memory")  # fmt: skip  # noqa: E501
def test_to_and_half():
    theirs, ours = (bag.half() for bag in pair())
    assert theirs.weight.dtype == torch.float16
    assert ours(IDS, OFFSETS).dtype == torch.float32


@fact("`reset_parameters()`", "draws the rows anew", "forgets the rows")
def test_reset_parameters():
    theirs, ours = pair()
    before = theirs.weight.detach().clone()
    for bag in (theirs, ours):
        bag.reset_parameters()
    assert not torch.equal(theirs.weight, before)
    assert len(ours.table) == 0


REFUSALS = [
    (f"{kind} `{name}`", there, f"`{error}`: {way_out}")
    for kind, there, error, refused in (
        ("argument", "taken", "TypeError", REFUSED_ARGUMENTS),
        ("attribute", "there", "AttributeError", REFUSED_ATTRIBUTES),
    )
    for name, way_out in refused.items()
]
"""Lines of the page that `test_options.py` proves."""


def facts() -> list[tuple[str, str, str]]:
    """Every line of the page, in order."""
    tests = [value for name, value in globals().items() if name.startswith("test_")]
    return [test.fact for test in tests if hasattr(test, "fact")] + REFUSALS


def test_every_test_here_is_a_line_of_the_page():
    tests = [name for name in globals() if name.startswith("test_")]
    assert len(facts()) == len(tests) - 1 + len(REFUSALS)
