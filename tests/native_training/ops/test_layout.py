"""Layouts beside the vectors of the reference system and beside plain torch."""

import dataclasses
import random

import pytest
import torch

from monolith.native_training.ops import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    SliceConfig,
    flatten_layout,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    nest_layout,
    sharding_sparse_fids,
)
from monolith.ops import Ragged
from tests.native_training.ops.layout_oracle import (
    FIRSTN,
    MEAN,
    SUM,
    oracle,
    rows_of,
    small_configs,
    small_rows,
    small_shards,
)

VERSIONS = (1, 2, 3, 4, 5)
VOCABULARY = 50


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("unique", [True, False])
def test_the_worked_example(version, unique):
    sharded = small_shards(version=version, unique=unique)
    configs = small_configs()
    rows = small_rows(sharded, version)
    found = nest_layout(fused_embedding_to_layout(rows, sharded, configs), configs)
    close = torch.testing.assert_close
    close(found["bias"], torch.tensor([[41.5], [10.0]]))
    close(found["seq"][0], torch.tensor([[[31, 31.1], [30, 30.1]]] * 2))
    vec = torch.tensor([[21.2, 21.4, 20.6, 20.7], [10.1, 10.2, 0, 0]])
    close(found["vec"], vec)
    close(found["stk"], vec.view(2, 2, 2))


def test_the_gradients_of_the_worked_example():
    sharded, configs = small_shards(version=3), small_configs()
    rows = small_rows(sharded)
    found = nest_layout(fused_embedding_to_layout(rows, sharded, configs), configs)
    (found["bias"].sum() + found["seq"][0].sum() + found["vec"].sum()).backward()
    assert [part.grad.view(-1).tolist() for part in rows] == [
        [2, 2, 2, 0.5, 0.5, 0.5],
        [1, 1, 1, 0.5, 0.5, 0.5],
        [2, 2, 0, 0],
        [2, 2],
    ]


class Case:
    """Random features of many kinds, and rows for them."""

    def __init__(self, num_features, batch_size, ps_num, *, seed=0, one_width=False):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.batch_size, self.ps_num = batch_size, ps_num
        widths = {"t1": (1, 4, 8), "t2": (1, 4, 8) if one_width else (1, 4, 16)}
        names = [f"f{i}" for i in range(num_features)]
        kinds = [draw.choice([SUM, MEAN, FIRSTN]) for _ in names]
        tables = [draw.choice(["t1", "t2"]) for _ in names]
        features = {
            name: FeatureConfig(table, widths[table], kind, 3)
            for name, table, kind in zip(names, tables, kinds, strict=True)
        }
        self.configs = FeatureConfigs(features, self._outputs(features))
        self.shared = [name for name in names if draw.random() < 0.5]
        self.features = {}
        for name in names[:-1]:  # the last one is missing
            num_rows = 1 if name in self.shared else batch_size
            rows = [
                [draw.randrange(VOCABULARY) for _ in range(draw.randrange(6))]
                for _ in range(num_rows)
            ]
            self.features[name] = Ragged.from_lists(rows)
        self.shared = [name for name in self.shared if name in self.features]
        self.values = {
            name: torch.randn(VOCABULARY, config.dim, requires_grad=True)
            for name, config in features.items()
        }

    def _outputs(self, features):
        pooled = [name for name, c in features.items() if c.pooling_type is not FIRSTN]
        first = [name for name, c in features.items() if c.pooling_type is FIRSTN]
        everything = {name: c.dim for name, c in features.items()}
        outputs = {
            "bias": OutConfig([SliceConfig(n, 0, 1) for n in pooled], OutType.ADDN),
            "vec": OutConfig([SliceConfig(n, 1, everything[n]) for n in pooled], OutType.CONCAT),
            "stk": OutConfig([SliceConfig(n, 1, 5) for n in pooled], OutType.STACK),
            "each": OutConfig([SliceConfig(n, 0, d) for n, d in everything.items()], OutType.NONE),
        }
        if first:
            slices = [SliceConfig(n, 1, 5) for n in first]
            outputs["seq"] = OutConfig(slices, OutType.CONCAT)
            outputs["seq_stk"] = OutConfig(slices, OutType.STACK)
        return outputs

    def shard(self, **options):
        return sharding_sparse_fids(
            self.features,
            self.configs,
            batch_size=self.batch_size,
            ps_num=self.ps_num,
            shared=self.shared,
            **options,
        )

    def ours(self, sharded, **options):
        rows = rows_of(self.values, sharded, self.configs)
        return fused_embedding_to_layout(rows, sharded, self.configs, **options)

    def theirs(self):
        found = oracle(self.values, self.features, self.configs, self.batch_size, self.shared)
        return flatten_layout(found, self.configs)

    def gradients(self, outputs, weights):
        leaves = list(self.values.values())
        total = sum((out * weight).sum() for out, weight in zip(outputs, weights, strict=True))
        return torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("ps_num", [1, 3])
def test_random_features_are_those_of_plain_torch(version, unique, ps_num):
    case = Case(29, 32, ps_num, one_width=version == 1)
    expected = case.theirs()
    weights = [torch.randn_like(out) for out in expected]
    found = case.ours(case.shard(version=version, unique=unique))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        case.gradients(found, weights), case.gradients(expected, weights), rtol=1e-4, atol=1e-4
    )


def test_many_features_on_five_shards_are_those_of_plain_torch():
    case = Case(199, 64, 5, seed=1)
    torch.testing.assert_close(case.ours(case.shard()), case.theirs(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_features", [2, 29])
def test_the_bits_do_not_depend_on_the_number_of_threads(num_features):
    case = Case(num_features, 256, 3, seed=3)
    sharded = case.shard(num_threads=3)
    one, three = case.ours(sharded, num_threads=1), case.ours(sharded, num_threads=3)
    assert all(map(torch.equal, one, three))
    weights = [torch.randn_like(out) for out in one]
    ones, threes = (
        fused_embedding_to_layout_grad(weights, sharded, case.configs, num_threads=n)
        for n in (1, 3)
    )
    assert all(map(torch.equal, ones, threes))


def test_the_bits_do_not_depend_on_the_number_of_shards():
    cases = [Case(29, 64, ps_num, seed=2) for ps_num in (1, 2, 7)]
    first, *others = (case.ours(case.shard()) for case in cases)
    for other in others:
        assert all(map(torch.equal, first, other))


def test_the_gradient_op_is_the_gradient():
    case = Case(11, 16, 2)
    sharded = case.shard(version=4)
    rows = [part.detach().requires_grad_() for part in rows_of(case.values, sharded, case.configs)]
    outputs = fused_embedding_to_layout(rows, sharded, case.configs)
    weights = [torch.randn_like(out) for out in outputs]
    torch.autograd.backward(outputs, weights)
    found = fused_embedding_to_layout_grad(weights, sharded, case.configs)
    assert all(torch.equal(part.grad, gradient) for part, gradient in zip(rows, found, strict=True))


def test_an_output_without_a_gradient_counts_as_zeros():
    sharded, configs = small_shards(), small_configs()
    ones = [torch.ones(2, *tail) for tail in configs.plan.tails]
    zeros = [torch.zeros_like(part) for part in ones]
    found = fused_embedding_to_layout_grad([ones[0], None, None, None], sharded, configs)
    expected = fused_embedding_to_layout_grad([ones[0], *zeros[1:]], sharded, configs)
    assert all(map(torch.equal, found, expected))


def test_rows_without_gradients_make_outputs_without():
    sharded = small_shards()
    rows = [part.detach() for part in small_rows(sharded)]
    outputs = fused_embedding_to_layout(rows, sharded, small_configs())
    assert not any(out.requires_grad for out in outputs)


def test_version_4_takes_one_tensor_for_all_shards():
    sharded, configs = small_shards(version=4), small_configs()
    rows = [part.detach() for part in small_rows(sharded, 4)]
    whole = torch.cat(rows).requires_grad_()
    found = fused_embedding_to_layout([whole], sharded, configs)
    assert all(map(torch.equal, found, fused_embedding_to_layout(rows, sharded, configs)))
    found[0].sum().backward()
    assert whole.grad.shape == whole.shape


@pytest.mark.parametrize("lists", [{}, {"a": [], "b": [], "c": [[]]}])
def test_a_batch_without_examples_or_ids_is_empty(lists):
    features = {name: Ragged.from_lists(rows) for name, rows in lists.items()}
    configs = small_configs()
    sharded = sharding_sparse_fids(
        features, configs, batch_size=0, ps_num=2, shared=["c"] if lists else []
    )
    outputs = fused_embedding_to_layout([torch.empty(0)] * 4, sharded, configs)
    assert [tuple(out.shape) for out in outputs] == [(0, 1), (0, 2, 2), (0, 2, 2), (0, 4)]


@pytest.mark.req("NT-DPS-T9")
def test_nesting_is_the_opposite_of_flattening_in_the_order_of_names():
    configs = small_configs()
    layout = {"vec": 3, "seq": [1], "bias": 0, "stk": 2}
    layout = {
        name: [torch.tensor(n) for n in x] if isinstance(x, list) else torch.tensor(x)
        for name, x in layout.items()
    }
    flat = flatten_layout(layout, configs)
    assert [int(tensor) for tensor in flat] == [0, 1, 2, 3]
    assert nest_layout(flat, configs) == layout


def run(rows=None, sharded=None, configs=None):
    sharded = sharded or small_shards()
    rows = small_rows(sharded) if rows is None else rows
    return fused_embedding_to_layout(rows, sharded, configs or small_configs())


@pytest.mark.parametrize("size", [17, 19])
def test_one_tensor_for_all_shards_of_another_size_is_refused(size):
    text = f"expected 18 floats in the rows of all shards, got {size}"
    with pytest.raises(ValueError, match=text):
        run([torch.ones(size)], small_shards(version=4))


def test_another_number_of_tensors_is_refused():
    with pytest.raises(
        ValueError, match="expected 4 tensors of rows, one per table and shard, got 1"
    ):
        run(small_rows(small_shards())[:1])


def test_rows_of_another_size_are_refused():
    rows = small_rows(small_shards())
    with pytest.raises(ValueError, match=r"expected 6 floats in embeddings\[1\], got 3"):
        run([rows[0], rows[1][:1], *rows[2:]])


def test_rows_of_another_dtype_are_refused():
    rows = [part.double() for part in small_rows(small_shards())]
    with pytest.raises(
        TypeError, match=r"embeddings\[0\] of dtype float32, got float64; cast with"
    ):
        run(rows)


def test_rows_that_are_no_tensors_or_not_dense_are_refused():
    rows = small_rows(small_shards())
    with pytest.raises(TypeError, match=r"embeddings\[0\] as a torch.Tensor, got list"):
        run([[1.0], *rows[1:]])
    with pytest.raises(ValueError, match=r"as a dense tensor on the CPU, got layout sparse_coo"):
        run([rows[0].detach().to_sparse(), *rows[1:]])


def test_configs_of_other_features_are_refused():
    fewer = FeatureConfigs({"a": FeatureConfig("t1", (3,))})
    with pytest.raises(
        ValueError, match="expected nfl_offset of 2 entries, got 4; use the configs"
    ):
        run(configs=fewer)


@pytest.mark.parametrize(
    ("field", "at", "value", "text"),
    [
        ("fid_offset", 0, 9 << 32, "list 9 at float 0: no such list"),
        ("fid_offset", 0, 4, "list 0 at float 4: 6 floats"),
        ("fid_offset", 0, -1, "no such list"),
        ("feature_offset", 1, 9, "feature_offset that never decreases, got 3 after 9"),
        ("feature_offset", 5, 7, "feature_offset from 0 to 8, the number of ids, got 0 to 7"),
        ("nfl_offset", 1, 4, "nfl_offset of feature 1 with 2 of 5 cells behind it, got 4"),
        ("nfl_offset", 1, -1, "nfl_offset of feature 1"),
    ],
)
def test_offsets_that_lead_nowhere_are_refused(field, at, value, text):
    sharded = small_shards()
    rows = small_rows(sharded)
    changed = getattr(sharded, field).clone()
    changed[at] = value
    with pytest.raises(ValueError, match=text):
        run(rows, dataclasses.replace(sharded, **{field: changed}))


def test_no_thread_is_refused():
    sharded = small_shards()
    with pytest.raises(ValueError, match="num_threads of at least 1, got 0"):
        fused_embedding_to_layout(small_rows(sharded), sharded, small_configs(), num_threads=0)


def test_gradients_of_another_number_shape_or_dtype_are_refused():
    sharded, configs = small_shards(), small_configs()
    good = [torch.ones(2, *tail) for tail in configs.plan.tails]
    with pytest.raises(ValueError, match="expected 4 gradients, one per output, got 3"):
        fused_embedding_to_layout_grad(good[:3], sharded, configs)
    with pytest.raises(ValueError, match=r"gradient 0 of shape \(2, 1\), got \(2, 4\)"):
        fused_embedding_to_layout_grad([good[3], *good[1:]], sharded, configs)
    with pytest.raises(TypeError, match="gradient 0 of dtype float32"):
        fused_embedding_to_layout_grad([good[0].double(), *good[1:]], sharded, configs)


def test_layouts_of_other_outputs_are_refused():
    configs, tensor = small_configs(), torch.zeros(1)
    with pytest.raises(ValueError, match="expected 4 tensors, got 1"):
        nest_layout([tensor], configs)
    with pytest.raises(
        ValueError, match=r"outputs \['bias', 'seq', 'stk', 'vec'\], got \['bias'\]"
    ):
        flatten_layout({"bias": tensor}, configs)
    layout = {"bias": tensor, "seq": [tensor, tensor], "stk": tensor, "vec": tensor}
    with pytest.raises(ValueError, match="expected 1 tensors of output 'seq', got 2"):
        flatten_layout(layout, configs)


def test_offsets_that_change_before_backward_are_noticed():
    sharded = small_shards()
    outputs = run(small_rows(sharded), sharded)
    sharded.fid_offset[0] = 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs[0].sum().backward()


@pytest.fixture
def compiled():
    """Compiles a function whole, and forgets it afterwards."""
    yield lambda function: torch.compile(function, fullgraph=True, backend="aot_eager")
    torch._dynamo.reset()


@pytest.mark.parametrize("version", [3, 4])
def test_a_compiled_function_has_the_same_outputs_and_gradients(version, compiled):
    configs = small_configs()

    def loss(rows, sharded):
        return sum((out * out).sum() for out in fused_embedding_to_layout(rows, sharded, configs))

    function = compiled(loss)
    sharded = small_shards(version=version)
    mine, theirs = small_rows(sharded, version), small_rows(sharded, version)
    found, expected = function(mine, sharded), loss(theirs, sharded)
    assert torch.equal(found, expected)
    found.backward()
    expected.backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(mine, theirs, strict=True))


def test_the_ops_keep_the_rules_of_torch():
    sharded, configs = small_shards(), small_configs()
    rows = [part.detach().view(-1).requires_grad_() for part in small_rows(sharded)]
    tails = [n for tail in configs.plan.tails for n in (len(tail), *tail)]
    offsets = (sharded.fid_offset, sharded.feature_offset, sharded.nfl_offset, sharded.cuts)
    plan = (configs.plan.dims, configs.plan.slices, tails, 2, False, 0)
    torch.library.opcheck(torch.ops.monolith.embeddings_to_layout, (rows, *offsets, *plan))
