import os

import pyarrow as pa
import pytest
import torch

from monolith import data
from monolith.checkpoint import Checkpoint, open_checkpoint, read_checkpoint_state
from monolith.cluster import LocalServers
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.native_training.saver import VARIABLES, NamedTensor, PartialRecoverySaver, SaveHelper
from monolith.train.driver import Run, drive
from tests.checkpoint.cases import manifest_of
from tests.checkpoint.golden import DTYPES
from tests.train.tasks import StopAfter

RUN = Run()


class Counter:
    """A saveable, as the position of an input is one."""

    def __init__(self, name, device="", **values):
        self.name, self.device = name, device
        self.tensors = {key: torch.tensor(value) for key, value in values.items()}
        self.position = 0

    def state_dict(self):
        return {**self.tensors, "position": self.position}

    def load_state_dict(self, state):
        self.tensors = {key: state[key] for key in self.tensors}
        self.position = state["position"]


def tensors(*values, names=("v0", "v1")):
    return {name: torch.tensor(value) for name, value in zip(names, values, strict=False)}


@pytest.fixture(params=["local", "hosted"])
def make_vars(request):
    """Makes mappings of named tensors, of this process or of servers."""
    with LocalServers(8) as servers:
        left = iter(range(8))

        def make(*values):
            if request.param == "local":
                return tensors(*values)
            return {
                name: NamedTensor(name, server.parameter(name, value), server.label)
                for server in [servers[next(left)]]
                for name, value in tensors(*values).items()
            }

        yield make


def value_of(variable):
    tensor = getattr(variable, "tensor", variable)
    return tensor.item()


@pytest.mark.req("TS-SAVE-T6")
def test_saved_values_come_back_into_a_new_model(tmp_path, make_vars):
    first = make_vars(10.0, 20.0)
    saver = PartialRecoverySaver([first, Counter("op", k1=30.0)])
    path = f"{tmp_path}/basics"
    assert saver.save(RUN, path) == path
    second, counter = make_vars(1000.0, 2000.0), Counter("op", k1=0.0)
    PartialRecoverySaver([second, counter]).restore(RUN, path)
    assert [value_of(v) for v in second.values()] == [10.0, 20.0]
    assert counter.tensors["k1"] == 30.0


@pytest.mark.req("TS-SAVE-T1")
def test_steps_of_saved_checkpoints(tmp_path):
    saver = PartialRecoverySaver(tensors(1.0))
    for step in (10, 20, 300):
        saver.save(RUN, tmp_path / "ckpt", global_step=step)
    assert SaveHelper(tmp_path / "ckpt").get_existing_checkpoint_steps() == {10, 20, 300}


@pytest.mark.req("TS-SAVE-T8")
def test_each_device_gives_its_own_values_only(tmp_path):
    with LocalServers(2) as servers:
        for i in range(2):
            servers[i].parameter(f"v{i}", torch.tensor(float(i)))
        saver = PartialRecoverySaver(servers, sharded=True)
        prefix = saver.save(RUN, tmp_path / "c")
        assert list(saver.builder.items_per_device) == [servers[0].label, servers[1].label]
        assert [list(file["tensors"]) for file in manifest_of(prefix)["dense"]] == [["v0"], ["v1"]]


@pytest.mark.req("TS-SAVE-T9")
def test_equal_models_give_equal_manifests(tmp_path):
    manifests = []
    for name, order in (("a", ("v0", "v1")), ("b", ("v1", "v0"))):
        saver = PartialRecoverySaver({key: torch.ones(2) for key in order}, clock=lambda: 5.0)
        prefix = saver.save(RUN, tmp_path / name, global_step=3)
        assert list(open_checkpoint(prefix).tensors) == ["v0", "v1"]
        manifests.append((tmp_path / f"{name}-3.manifest.json").read_bytes())
    assert manifests[0] == manifests[1]  # byte by byte, at one time


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.register_buffer("mean", torch.randn(2))

    def forward(self, x):
        return self.layer(x) + self.mean


@pytest.mark.req("TS-SAVE-T10")
@pytest.mark.parametrize("is_compiled", [True, False])
def test_eager_and_compiled_modules_read_each_other(tmp_path, is_compiled):
    first, second = Net(), Net()
    compiled = [torch.compile(each, backend="eager") for each in (first, second)]
    inner = Net()
    inner.layer = torch.compile(first.layer, backend="eager")
    inner.mean = first.mean
    saved = [compiled[0], inner] if is_compiled else [first, first]
    for i, module in enumerate(saved):
        prefix = PartialRecoverySaver(module).save(RUN, tmp_path / f"c{i}")
        assert sorted(open_checkpoint(prefix).tensors) == ["layer.bias", "layer.weight", "mean"]
        PartialRecoverySaver(second if is_compiled else compiled[1]).restore(RUN, prefix)
        assert torch.equal(second.layer.weight, first.layer.weight)
        assert torch.equal(second.mean, first.mean)


@pytest.mark.req("TS-SAVE-T12")
def test_building_a_saver_leaves_the_model_as_it_is():
    model = Net()

    def content():
        return [{key: str(value) for key, value in vars(m).items()} for m in model.modules()]

    before = content()
    PartialRecoverySaver(model)
    assert content() == before
    assert "_forward_hooks" in before[1]  # also of the layer inside


@pytest.mark.req("TS-SAVE-T13")
def test_a_directory_with_relative_paths_can_be_moved(tmp_path, make_vars):
    saver = PartialRecoverySaver(make_vars(10.0, 20.0), save_relative_paths=True)
    (tmp_path / "a").mkdir()
    saver.save(RUN, tmp_path / "a" / "c", global_step=1)
    os.rename(tmp_path / "a", tmp_path / "b")
    state = read_checkpoint_state(tmp_path / "b")
    assert state.model_checkpoint_path == f"{tmp_path}/b/c-1"
    second = make_vars(0.0, 0.0)
    PartialRecoverySaver(second).restore(RUN, state.model_checkpoint_path)
    assert [value_of(v) for v in second.values()] == [10.0, 20.0]


@pytest.mark.req("TS-SAVE-T14")
def test_a_custom_file_name_is_honoured(tmp_path):
    saver = PartialRecoverySaver(tensors(1.0), filename="other", model_dir=tmp_path)
    assert saver.save(RUN) == f"{tmp_path}/other"
    assert saver.save(RUN, global_step=3) == f"{tmp_path}/other-3"


@pytest.mark.req("TS-SAVE-T14")
def test_a_missing_path_is_refused(tmp_path):
    saver = PartialRecoverySaver(tensors(1.0))
    text = "^The passed save_path is not a valid checkpoint: /can/not/exist$"
    with pytest.raises(ValueError, match=text):
        saver.restore(RUN, "/can/not/exist")
    with pytest.raises(ValueError, match=r"^Can't load save_path when it is None\.$"):
        saver.restore(RUN, None)


@pytest.mark.req("TS-SAVE-T14")
def test_int64_is_exact(tmp_path):
    number = 1234567890123456789
    prefix = PartialRecoverySaver(tensors(number)).save(RUN, tmp_path / "c")
    target = tensors(-1)
    PartialRecoverySaver(target).restore(RUN, prefix)
    assert target["v0"] == number


@pytest.mark.req("TS-SAVE-T15")
def test_one_name_twice_is_refused_and_one_object_under_two_names_is_not(tmp_path):
    with pytest.raises(ValueError, match=r"expected each name once, got 'v0' twice"):
        PartialRecoverySaver([tensors(1.0), tensors(2.0)])
    tensor = torch.tensor(5.0)
    prefix = PartialRecoverySaver({"a": tensor, "b": tensor}).save(RUN, tmp_path / "c")
    assert {name: t.item() for name, t in open_checkpoint(prefix).read_dense().items()} == {
        "a": 5.0,
        "b": 5.0,
    }


@pytest.mark.req("TS-SAVE-T15")
@pytest.mark.parametrize(
    ("var_list", "text"),
    [
        (
            [torch.ones(1)],
            "saveables, got Tensor; give a tensor a name with NamedTensor",
        ),
        (["v0"], "servers or saveables, got str"),
        ({3: torch.ones(1)}, "expected names as str, got 3"),
        ({"a": 3}, "expected a tensor or a saveable as 'a', got 3"),
    ],
)
def test_what_cannot_be_saved_is_refused(var_list, text):
    with pytest.raises(TypeError, match=text):
        PartialRecoverySaver(var_list)


def test_a_module_with_a_state_that_is_no_tensor_is_refused():
    class Counts(torch.nn.Module):
        def get_extra_state(self):
            return {"count": 3}

    with pytest.raises(TypeError, match=r"of a module, got dict as 'm\._extra_state'; keep it in"):
        PartialRecoverySaver({"m": Counts()})


@pytest.mark.req("TS-SAVE-T16")
def test_a_list_of_parameters_and_all_parameters_of_the_run(tmp_path):
    run, first = Run(), [NamedTensor("a", torch.ones(2)), NamedTensor("b", torch.zeros(2))]
    prefix = PartialRecoverySaver(first).save(run, tmp_path / "c")
    second = [NamedTensor("a", torch.zeros(2)), NamedTensor("b", torch.ones(2))]
    for each in second:
        run.add(VARIABLES, each)
    with run.as_current():
        saver = PartialRecoverySaver()
    saver.restore(run, prefix)
    assert [each.tensor.tolist() for each in second] == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.req("TS-SAVE-T17")
def test_an_overwritten_checkpoint_is_read_again(tmp_path):
    target = tensors(0.0)
    saver, path = PartialRecoverySaver(target), f"{tmp_path}/c"
    for value in (1.0, 2.0):
        PartialRecoverySaver(tensors(value)).save(RUN, path)
        saver.restore(RUN, path)
        assert target["v0"] == value


@pytest.mark.req("TS-SAVE-T18")
def test_nothing_to_save(tmp_path):
    saver = PartialRecoverySaver({}, allow_empty=True)
    assert saver.save(RUN, tmp_path / "c") is None
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match=r"^No variables to save$"):
        PartialRecoverySaver({})


@pytest.mark.gpu
@pytest.mark.req("TS-SAVE-T19")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_parameters_on_an_accelerator(tmp_path):
    first = {"a": torch.ones(3, device="cuda"), "b": torch.zeros(2)}
    prefix = PartialRecoverySaver(first, sharded=True).save(RUN, tmp_path / "c")
    second = {"a": torch.zeros(3, device="cuda"), "b": torch.ones(2)}
    PartialRecoverySaver(second).restore(RUN, prefix)
    assert second["a"].tolist() == [1.0] * 3
    assert second["b"].tolist() == [0.0] * 2


@pytest.mark.req("TS-SAVE-T20")
def test_a_deferred_build(tmp_path):
    with pytest.raises(ValueError, match=r"^If `var_list` is provided then build cannot be"):
        PartialRecoverySaver(tensors(1.0), defer_build=True)
    saver = PartialRecoverySaver(defer_build=True)
    text = r"^`build\(\)` should be called before save if defer_build==True$"
    with pytest.raises(RuntimeError, match=text):
        saver.save(RUN, tmp_path / "c")
    saver.build(tensors(1.0))
    assert saver.save(RUN, tmp_path / "c") == f"{tmp_path}/c"


@pytest.mark.req("TS-SAVE-T21")
def test_another_shape_needs_reshape(tmp_path):
    values = {"v": torch.arange(6.0).reshape(2, 3)}
    prefix = PartialRecoverySaver(values).save(RUN, tmp_path / "c")
    target = {"v": torch.zeros(3, 2)}
    with pytest.raises(InvalidArgumentError, match=r"expected tensor 'v' with shape \(3, 2\) and"):
        PartialRecoverySaver(target).restore(RUN, prefix)
    PartialRecoverySaver(target, reshape=True).restore(RUN, prefix)
    assert target["v"].tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


@pytest.mark.req("TS-SAVE-T22")
@pytest.mark.parametrize("step", [5, torch.tensor(5)])
def test_the_step_is_appended(tmp_path, step):
    path = f"{tmp_path}/c"
    assert PartialRecoverySaver(tensors(1.0)).save(RUN, path, global_step=step) == f"{path}-5"
    padded = PartialRecoverySaver(tensors(1.0), pad_step_number=True)
    assert padded.save(RUN, path, global_step=step) == f"{path}-00000005"
    assert open_checkpoint(f"{path}-5").step == 5


@pytest.mark.req("TS-SAVE-T23")
@pytest.mark.parametrize("sharded", [False, True])
def test_a_missing_parent_directory(tmp_path, sharded):
    saver = PartialRecoverySaver(tensors(1.0), sharded=sharded)
    path = f"{tmp_path}/none/c"
    text = f"^Parent directory of {path} doesn't exist, can't save\\.$"
    with pytest.raises(ValueError, match=text):
        saver.save(RUN, path, global_step=3)


@pytest.mark.req("TS-SAVE-T23")
def test_a_uri(tmp_path):
    values, path = tensors(3.0), f"file://{tmp_path}/c"
    assert PartialRecoverySaver(values).save(RUN, path) == path
    target = tensors(0.0)
    PartialRecoverySaver(target).restore(RUN, path)
    assert target["v0"] == 3.0


@pytest.mark.req("TS-SAVE-T24")
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_back_and_no_other_is_taken(tmp_path, dtype):
    values = {"v": torch.tensor([0, 1]).to(dtype)}
    prefix = PartialRecoverySaver(values).save(RUN, tmp_path / "c")
    target = {"v": torch.zeros(2, dtype=dtype)}
    PartialRecoverySaver(target).restore(RUN, prefix)
    assert torch.equal(target["v"], values["v"])
    other = torch.float64 if dtype != torch.float64 else torch.float32
    with pytest.raises(InvalidArgumentError, match=rf"got \(2,\) and {dtype}"):
        PartialRecoverySaver({"v": torch.zeros(2, dtype=other)}).restore(RUN, prefix)


@pytest.mark.req("TS-SAVE-T24")
def test_a_large_tensor(tmp_path):
    values = {"v": torch.arange(1 << 22)}
    prefix = PartialRecoverySaver(values).save(RUN, tmp_path / "c")
    target = {"v": torch.zeros(1 << 22, dtype=torch.int64)}
    PartialRecoverySaver(target, restore_sequentially=True).restore(RUN, prefix)
    assert torch.equal(target["v"], values["v"])


@pytest.mark.parametrize(("is_sequential", "expected"), [(True, 1), (False, None)])
def test_a_sequential_restore_reads_on_one_thread(tmp_path, monkeypatch, is_sequential, expected):
    prefix = PartialRecoverySaver({"v": torch.ones(2)}).save(RUN, tmp_path / "c")
    read_parts, threads = Checkpoint.read_parts, []

    def watch(self, where, dense, states, num_threads=None):
        threads.append(num_threads)
        return read_parts(self, where, dense, states, num_threads)

    monkeypatch.setattr(Checkpoint, "read_parts", watch)
    target = {"v": torch.zeros(2)}
    PartialRecoverySaver(target, restore_sequentially=is_sequential).restore(RUN, prefix)
    assert threads == [expected]


@pytest.mark.req("TS-SAVE-T25")
@pytest.mark.parametrize("sharded", [True, False])
def test_inputs_of_two_devices_go_on_from_their_positions(tmp_path, sharded):
    whole = read(inputs())
    first = inputs()
    before = read(first, steps=3)
    saver = PartialRecoverySaver(first, sharded=True)
    prefix = saver.save(RUN, tmp_path / "c")
    assert list(saver.builder.items_per_device) == [source.device for source in first]
    second = inputs()
    read(second, steps=1)
    PartialRecoverySaver(second, sharded=sharded).restore(RUN, prefix)
    after = read(second)
    assert [one + other for one, other in zip(before, after, strict=True)] == whole
    assert [len(batches) for batches in after] == [2, 7]


class Input:
    """The iterator of a shuffled pipeline, as a saveable."""

    def __init__(self, name, device, number):
        table = pa.table({"user": range(number), "label": [0.0] * number})
        self.name, self.device = name, device
        self._pipeline = data.arrow_table(table, label="label").shuffle(8, seed=number).batch(2)
        self.batches = iter(self._pipeline)

    def state_dict(self):
        return self.batches.state_dict()

    def load_state_dict(self, state):
        self.batches.close()
        self.batches = self._pipeline.resume(state)


def inputs():
    return [Input("it0", "/job:ps/task:0", 10), Input("it1", "/job:ps/task:1", 20)]


def read(sources, steps=None):
    """Run steps that read a batch of each source; return the users of each source."""
    users = [[] for _ in sources]

    def step():
        batches = [next(source.batches, None) for source in sources]
        if not any(batches):
            raise StopIteration
        for own, batch in zip(users, batches, strict=True):
            if batch is not None:
                own.append(batch.features["user"].values.tolist())

    drive(step, [] if steps is None else [StopAfter(steps)])
    return users


@pytest.mark.req("TS-SAVE-T29")
def test_other_names_in_the_checkpoint(tmp_path, make_vars):
    first = make_vars(10.0, 20.0)
    mapped = {f"save_prefix/{name}": value for name, value in first.items()}
    prefix = PartialRecoverySaver(mapped).save(RUN, tmp_path / "c")
    assert sorted(open_checkpoint(prefix).tensors) == ["save_prefix/v0", "save_prefix/v1"]
    second = make_vars(0.0, 0.0)
    text = r"expected 'v0' of the model in .*/c, got a checkpoint without it; the model has changed"
    with pytest.raises(NotFoundError, match=text):
        PartialRecoverySaver(second).restore(RUN, prefix)
    PartialRecoverySaver({f"save_prefix/{k}": v for k, v in second.items()}).restore(RUN, prefix)
    assert [value_of(v) for v in second.values()] == [10.0, 20.0]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((3, "c"), TypeError, "expected a Run, got 3"),
        ((RUN, "c", 1, "a/b"), ValueError, "^'latest_filename' must not contain path components$"),
        (
            (RUN, "a/checkpoint"),
            ValueError,
            "^'latest_filename' collides with 'save_path': 'checkpoint' and 'a/checkpoint'$",
        ),
    ],
)
def test_arguments_that_cannot_be(arguments, error, text):
    with pytest.raises(error, match=text):
        PartialRecoverySaver(tensors(1.0)).save(*arguments)


def test_a_saver_that_skips_writes_nothing(tmp_path):
    assert PartialRecoverySaver(tensors(1.0), skip_save=True).save(RUN, tmp_path / "c") is None
    assert os.listdir(tmp_path) == []


def test_a_run_gives_a_collection_away_once():
    run = Run()
    run.add("a", 1)
    assert run.take("a") == (1,)
    assert run.take("a") == ()
