"""Features over shards, against a dense model of the same (the seed's `distributed_ps_test`)."""

import dataclasses

import pytest
import torch

from monolith.cluster import LocalServers
from monolith.native_training.ops import ParserContext, sharding_sparse_fids
from monolith.native_training.queues import EnqueueHook, prefetch
from monolith.native_training.slots.combiners import ReduceSum
from monolith.native_training.tables import PartitionedHashTable
from monolith.native_training.tables.entry_config import HashTableConfigInstance
from monolith.native_training.tables.feature_plan import FeatureSpec
from monolith.native_training.tables.table_merge import get_sub_table_name
from monolith.observe.metrics import MemorySink
from monolith.ops import Ragged
from monolith.table.optimizers import PolynomialDecay
from monolith.train import Hook, Run
from monolith.train.driver import drive
from tests.native_training.tables.kinds import on_every_kind
from tests.native_training.tables.partitioned_oracle import (
    ASK,
    BATCH,
    FEATURES,
    ONE,
    OUTPUTS,
    TWIN_BATCH,
    TWIN_OUTPUT,
    TWIN_READ,
    TWINS,
    TWO,
    DenseModel,
)
from tests.suites.table_base import NOW, column, keys

every_count = pytest.mark.parametrize("num_ps", [0, 1, 2, 3])
generate = PartitionedHashTable.gen_feature_configs


@pytest.fixture
def make(servers_of):
    """(number of servers, features, outputs) -> table; closed at the end."""
    made = []

    def make(num_ps=2, features=FEATURES, outputs=OUTPUTS, sink=None, **options):
        params = generate(num_ps, features, outputs, **options)
        context = ParserContext(sharding_sparse_fids_op_params=params)
        servers = servers_of(num_ps) if num_ps else None
        table = PartitionedHashTable(context, servers, clock=lambda: NOW, sink=sink, model_name="m")
        made.append(table)
        return table

    yield make
    for each in made:
        each.close()


def assert_same(found, expected, **tolerance):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, **tolerance)


def train(table, bundle, outputs, weight=0.5, **options):
    """One step on a loss that uses every output; the loss, too."""
    flat = table.flatten_layout(outputs)
    loss = sum((weight * output.square() + output).sum() for output in flat)
    pairs = list(zip(torch.autograd.grad(loss, flat), flat, strict=True))
    table.apply_gradients(pairs, auxiliary_bundle=bundle, **options)
    return loss


@pytest.mark.req("NT-DPS-T8")
@on_every_kind
@pytest.mark.parametrize("is_native", [True, False])
@every_count
def test_outputs_and_updates_equal_a_dense_model(make, num_ps, is_native):
    model = DenseModel()
    table = make(num_ps, use_native_multi_hash_table=is_native).assign(model.values())
    bundle = {}
    outputs = table.lookup(BATCH, bundle, **ASK)
    assert_same(outputs, model.outputs())
    loss = train(table, bundle, outputs)
    expected = model.outputs()
    flat = table.flatten_layout(expected)
    sum((0.5 * output.square() + output).sum() for output in flat).backward()
    assert loss.item() == pytest.approx(sum((0.5 * o.square() + o).sum().item() for o in flat))
    for row in model.rows.values():  # SGD, rate 1
        row.data -= 0 if row.grad is None else row.grad
    assert_same(table.lookup(BATCH, **ASK), model.outputs())


@pytest.mark.req("NT-DPS-T12")
@on_every_kind
def test_outputs_have_the_same_bits_on_every_number_of_shards(make):
    found = []
    for num_ps in (0, 1, 2, 3, 7):
        table = make(num_ps).assign(DenseModel().values())
        for step in range(3):
            bundle = {}
            train(table, bundle, table.lookup(BATCH, bundle, **ASK), 0.01, global_step=step)
        found.append(table.flatten_layout(table.lookup(BATCH, **ASK)))
    for other in found[1:]:
        assert all(torch.equal(*pair) for pair in zip(found[0], other, strict=True))


@pytest.mark.req("NT-DPS-T8")
@on_every_kind
def test_plain_ids_of_two_features_with_equal_configs_keep_their_rows(make):
    table = make(2, TWINS, TWIN_OUTPUT)
    table.assign({"fc_slot_1": (keys(7), column(1)), "fc_slot_2": (keys(7), column(2))})
    batch = {name: Ragged.from_lists([[7]]) for name in TWINS}
    assert table.lookup(batch)["out"].tolist() == [[1, 2]]


@pytest.mark.req("NT-DPS-T7")
@on_every_kind
def test_features_share_a_table_where_ids_carry_their_slot(make):
    table = make(2, TWINS, TWIN_OUTPUT, ids_carry_slot=True)
    assert list(table.tables) == [get_sub_table_name(list(TWINS))[1]]
    ids = {name: (slot << 48) | 7 for slot, name in enumerate(TWINS, 1)}
    batch = {name: Ragged.from_lists([[i]]) for name, i in ids.items()}
    bundle = {}
    out = table.lookup(batch, bundle)["out"]
    table.apply_gradients([(torch.tensor([[1.0, 2.0]]), out)], auxiliary_bundle=bundle)
    assert table.lookup(batch)["out"].tolist() == [[-1, -2]]


class TestPhases:
    def test_a_lookup_in_phases_is_a_lookup(self, make):
        table = make(2).assign(DenseModel().values())
        expected = table.lookup(BATCH, **ASK)
        rows = table.lookup(BATCH, ret_lookup_callable_fn=True, **ASK)
        assert_same(rows(), expected, rtol=0, atol=0)
        layout = table.lookup(BATCH, ret_fused_layout_callable_fn=True, **ASK)
        assert_same(layout(), expected, rtol=0, atol=0)
        both = {"ret_lookup_callable_fn": True, "ret_fused_layout_callable_fn": True}
        assert_same(table.lookup(BATCH, **both, **ASK)()(), expected, rtol=0, atol=0)

    def test_rows_are_those_of_the_moment_of_the_second_phase(self, make):
        table = make(2, TWINS, TWIN_OUTPUT)
        batch = {name: Ragged.from_lists([[7]]) for name in TWINS}
        rows = table.lookup(batch, ret_lookup_callable_fn=True)
        table.assign({"fc_slot_1": (keys(7), column(5))})
        assert rows()["out"].tolist() == [[5, 0]]

    def test_a_bundle_may_travel_between_the_phases(self, make):
        table = make(2).assign(DenseModel().values())
        bundle = {}
        rows = table.lookup(BATCH, bundle, ret_lookup_callable_fn=True, **ASK)
        copy = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in bundle.items()}
        bundle.clear()
        assert_same(rows(copy), DenseModel().outputs())

    def test_ids_that_were_sharded_before_are_taken_as_they_are(self, make):
        table = make(2).assign(DenseModel().values())
        given = sharding_sparse_fids(BATCH, table.feature_configs, ps_num=2, version=4, **ASK)
        assert_same(table.lookup(given), DenseModel().outputs())

    def test_a_phase_without_the_one_before_is_refused(self, make):
        table = make(2)
        with pytest.raises(ValueError, match=r"apply_gradients\] expected the auxiliary_bundle"):
            table.apply_gradients([], auxiliary_bundle={})
        bundle = {}
        table.lookup(BATCH, bundle, ret_lookup_callable_fn=True, **ASK)
        with pytest.raises(ValueError, match=r"fused_layout\] expected an auxiliary_bundle with"):
            table.fused_layout(bundle)


class Manager:
    """The asynchronous manager of the reference system, by hand."""

    def __init__(self):
        self.queue = []
        self.queue_names = []

    def add_async_function(
        self, target, args=None, kwargs=None, is_async=None, queue_name="async_queue"
    ):
        self.queue_names.append(queue_name)

        def enqueue():
            given = [each() if callable(each) else each for each in args]
            self.queue.append(lambda: target(*given, **(kwargs or {})))

        if is_async:
            return enqueue
        enqueue()
        return self.queue.pop()()


class TestUpdates:
    def pairs(self, out):
        return [(torch.tensor([[1.0, 2.0], [4.0, 8.0]]), out)]

    def test_a_manager_runs_the_update_now(self, make):
        table, manager, bundle = make(2, TWINS, TWIN_OUTPUT), Manager(), {}
        out = table.lookup(TWIN_BATCH, bundle)["out"]
        applied = table.apply_gradients(
            self.pairs(out), auxiliary_bundle=bundle, async_function_mgr=manager
        )
        assert applied.num_applied == 4
        assert table.lookup(TWIN_READ)["out"].tolist() == [[-1, -2]]

    def test_an_update_of_later_has_the_gradients_and_ids_of_its_step(self, make):
        table, manager, bundle = make(2, TWINS, TWIN_OUTPUT), Manager(), {}
        seen = {}
        enqueue = table.apply_gradients(
            lambda: self.pairs(seen["out"]),
            auxiliary_bundle=bundle,
            global_step=lambda: 1,
            async_function_mgr=manager,
            async_push=True,
        )
        for batch in (TWIN_BATCH, TWIN_BATCH):
            seen["out"] = table.lookup(batch, bundle)["out"]
            enqueue()
        table.lookup(TWIN_READ, bundle)
        assert table.lookup(TWIN_READ)["out"].tolist() == [[0, 0]]
        for update in manager.queue:
            update()
        assert table.lookup(TWIN_READ)["out"].tolist() == [[-2, -4]]
        assert manager.queue_names == ["postpush_queue"]

    def test_an_update_of_later_needs_a_manager(self, make):
        table, bundle = make(2, TWINS, TWIN_OUTPUT), {}
        out = table.lookup(TWIN_BATCH, bundle)["out"]
        with pytest.raises(
            ValueError, match="expected async_function_mgr with async_push, got None"
        ):
            table.apply_gradients(self.pairs(out), auxiliary_bundle=bundle, async_push=True)

    def test_an_update_gives_its_counts_and_a_handle(self, make):
        table, bundle = make(2, TWINS, TWIN_OUTPUT), {}
        out = table.lookup(TWIN_BATCH, bundle)["out"]
        update = table.apply_gradients(self.pairs(out), auxiliary_bundle=bundle)
        assert update == (4, 4, 0, 0)
        update.as_op().wait(0.0)

    def test_an_update_has_the_rates_of_its_step_and_its_time(self, make):
        decay = HashTableConfigInstance(ONE.table_config, [PolynomialDecay(1.0, 10, 11.0)])
        features = {name: FeatureSpec(decay, [1], ReduceSum()) for name in TWINS}
        table, bundle = make(2, features, TWIN_OUTPUT), {}
        out = table.lookup(TWIN_READ, bundle)["out"]
        table.apply_gradients(
            [(torch.ones(1, 2), out)], auxiliary_bundle=bundle, global_step=5, req_time=NOW - 9
        )
        assert table.lookup(TWIN_READ)["out"].tolist() == [[-6, -6]]
        (rows,) = table.tables["fc_slot_1"].export()
        assert rows.times.tolist() == [NOW - 9]

    def test_gradients_are_scaled(self, make):
        table, bundle = make(2, TWINS, TWIN_OUTPUT), {}
        out = table.lookup(TWIN_BATCH, bundle)["out"]
        table.apply_gradients(self.pairs(out), auxiliary_bundle=bundle, grad_scale=0.5)
        assert table.lookup(TWIN_READ)["out"].tolist() == [[-0.5, -1]]

    def test_an_output_may_have_no_gradient(self, make):
        table, bundle = make(2, TWINS, TWIN_OUTPUT), {}
        out = table.lookup(TWIN_BATCH, bundle)["out"]
        table.apply_gradients([(None, out)], auxiliary_bundle=bundle, global_step=lambda: 3)
        assert table.lookup(TWIN_READ)["out"].tolist() == [[0, 0]]

    def test_rates_are_given_by_table(self, make):
        table, bundle = make(2, TWINS, TWIN_OUTPUT), {}
        out = table.lookup(TWIN_BATCH, bundle)["out"]
        table.apply_gradients(
            self.pairs(out), auxiliary_bundle=bundle, learning_rates={"fc_slot_2": [10.0]}
        )
        assert table.lookup(TWIN_READ)["out"].tolist() == [[-1, -20]]

    @pytest.mark.req("NT-DPS-T6")
    @on_every_kind
    def test_float16_rounds_what_travels(self, make):
        table, bundle = make(2, TWINS, TWIN_OUTPUT, transfer_float16=True), {}
        assert not table.params.use_native_multi_hash_table
        third = torch.tensor(1 / 3)
        table.assign({"fc_slot_1": (keys(7), third.view(1, 1))})
        out = table.lookup(TWIN_READ, bundle)["out"]
        assert out.tolist() == [[third.half().item(), 0]]
        table.apply_gradients([(torch.full((1, 2), third), out)], auxiliary_bundle=bundle)
        expected = (third - third.half()).half().float(), (-third.half()).float()
        assert table.lookup(TWIN_READ)["out"].tolist() == [[each.item() for each in expected]]

    def test_values_are_added(self, make):
        table = make(2, TWINS, TWIN_OUTPUT)
        for _ in range(2):
            table.assign_add({"fc_slot_1": (keys(7, 7), column(1, 2))}, req_time=NOW)
        assert table.lookup(TWIN_READ)["out"].tolist() == [[6, 0]]
        table.as_op().wait()


class TestRefusals:
    @pytest.mark.parametrize(
        ("option", "text"),
        [
            ("enable_gpu_emb", "tables on an accelerator are not built"),
            ("use_gpu", "layouts on an accelerator are not built"),
        ],
    )
    def test_accelerators(self, option, text):
        with pytest.raises(NotImplementedError, match=f"expected {option}=False, got True; {text}"):
            generate(2, FEATURES, OUTPUTS, **{option: True})
        params = dataclasses.replace(generate(2, FEATURES, OUTPUTS), **{option: True})
        with pytest.raises(NotImplementedError, match=text):
            PartitionedHashTable(ParserContext(sharding_sparse_fids_op_params=params))

    def test_a_context_without_params(self):
        with pytest.raises(ValueError, match="a context with sharding_sparse_fids_op_params"):
            PartitionedHashTable(ParserContext())

    def test_another_number_of_servers(self):
        context = ParserContext(sharding_sparse_fids_op_params=generate(2, FEATURES, OUTPUTS))
        with (
            LocalServers(3) as servers,
            pytest.raises(ValueError, match="a server for each of 2 shards, got 3"),
        ):
            PartitionedHashTable(context, servers)

    @pytest.mark.parametrize(
        ("configs", "text"),
        [
            ({"fc_slot_1": ONE}, "of the tables fc_slot_1, fc_slot_2, got those of fc_slot_1"),
            (
                {"fc_slot_1": ONE, "fc_slot_2": TWO},
                r"their table, 2, got 1 \(feature 'fc_slot_2', table 'fc_slot_2'\)",
            ),
        ],
    )
    def test_tables_that_do_not_fit_the_features(self, configs, text):
        params = generate(0, TWINS, TWIN_OUTPUT)
        params = dataclasses.replace(params, sub_table_name_to_config=configs)
        with pytest.raises(ValueError, match=text):
            PartitionedHashTable(ParserContext(sharding_sparse_fids_op_params=params))

    def test_a_batch_without_a_size(self, make):
        with pytest.raises(ValueError, match="expected batch_size, since no feature"):
            make(2).lookup({"d": BATCH["d"]}, shared=["d"])

    def test_ids_of_another_sharding(self, make):
        table = make(2)
        given = sharding_sparse_fids(BATCH, table.feature_configs, ps_num=3, version=4, **ASK)
        with pytest.raises(ValueError, match=r"\(version, shards, tables\) \(4, 2, .*got \(4, 3"):
            table.lookup(given)

    def test_unknown_features(self, make):
        with pytest.raises(ValueError, match=r"assign\] expected features of the configs, got 'z'"):
            make(2).assign({"z": (keys(1), column(1))})

    def test_rows_of_another_shape_are_refused_by_feature(self, make):
        text = (
            r"\[PartitionedHashTable.assign\] expected values of shape \(1, 1\), got \(2, 1\) "
            r"\(feature 'fc_slot_1'\)"
        )
        with pytest.raises(ValueError, match=text):
            make(2, TWINS, TWIN_OUTPUT).assign({"fc_slot_1": (keys(1), column(1, 2))})


def test_two_contexts_know_nothing_of_each_other(make):
    one, two = make(2, TWINS, TWIN_OUTPUT), make(3)
    assert (one.params.num_ps, two.params.num_ps) == (2, 3)
    assert one.feature_configs.feature_names != two.feature_configs.feature_names


def test_tables_are_those_of_the_run():
    context = ParserContext(sharding_sparse_fids_op_params=generate(2, TWINS, TWIN_OUTPUT))
    with LocalServers(2) as servers, servers.run():
        PartitionedHashTable(context).assign({"fc_slot_1": (keys(7), column(3))})
        assert PartitionedHashTable(context).lookup(TWIN_READ)["out"].tolist() == [[3, 0]]


def test_lookup_times_of_each_server_go_to_the_sink(make):
    sink = MemorySink()
    make(2, sink=sink).lookup(BATCH, **ASK)
    tags = [{"model_name": "m", "ps": ps} for ps in ("0", "1")]
    assert [sink.summary("embedding_lookup", each).num_times for each in tags] == [1, 1]


def test_queue_hooks_are_kept_in_order(make):
    table, hooks = make(2), [object(), object()]
    for hook in hooks:
        table.add_queue_hook(hook)
    assert table.get_queue_hooks() == hooks


def test_queue_hooks_of_underlying_tables_come_last(make):
    table, inner = make(2, TWINS, TWIN_OUTPUT), {"fc_slot_2": ["c"], "fc_slot_1": ["a", "b"]}
    for name, hooks in inner.items():
        table.tables[name].get_queue_hooks = lambda hooks=hooks: hooks
    table.add_queue_hook("own")
    assert table.get_queue_hooks() == ["own", "a", "b", "c"]


class Told(Hook):
    """Records the calls of its methods."""

    def __init__(self):
        self.calls = []

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, run, coordinator):
        self.calls.append("create")

    def after_run(self, ctx, results):
        self.calls.append(results.value)

    def end(self, run):
        self.calls.append("end")


def steps(table=None, number=3):
    """Return a step that looks up rows of a table, and ends after `number` steps."""
    left = iter(range(number))

    def step():
        value = next(left)
        if table is not None:
            table.lookup(BATCH, **ASK)
        return value

    return step


def test_a_run_calls_the_queue_hooks_of_a_table_that_was_set_up_in_it(make):
    table, run, hook = make(2), Run(), Told()
    with run.as_current():
        table.add_queue_hook(hook)
    drive(steps(), run=run)
    assert hook.calls == ["begin", "create", 0, 1, 2, "end"]


def test_a_run_calls_the_queue_hooks_of_a_table_that_its_steps_use_once(make):
    table, hook = make(2), Told()
    table.add_queue_hook(hook)
    drive(steps(table))
    assert hook.calls == ["begin", "create", 1, 2, "end"]  # from the step after the first use
    other = Told()
    drive(steps(table), [other, hook])
    assert hook.calls[5:] == other.calls == ["begin", "create", 0, 1, 2, "end"]


def test_a_queue_hook_that_is_added_while_a_session_starts_begins_with_it(make):
    table, hook = make(2), Told()

    class Starting(Hook):
        def after_create_session(self, run, coordinator):
            table.add_queue_hook(hook)

    drive(steps(), [Starting()])
    assert hook.calls == ["begin", "create", 0, 1, 2, "end"]


def test_a_queue_of_a_table_is_filled_for_the_steps_of_the_run(make):
    table, run, numbers, taken = make(2), Run(), iter(range(4)), []
    with run.as_current():
        batch, queue = prefetch(lambda: {"x": torch.tensor(next(numbers))}, capacity=2)
        table.add_queue_hook(EnqueueHook(queue))
    drive(lambda: taken.append(batch()["x"].item()), run=run)
    assert taken == [0, 1, 2, 3]
