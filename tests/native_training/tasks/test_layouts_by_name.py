import hashlib

import pytest
import torch

from monolith.native_training.ops.layout_config import OutConfig, OutType, SliceConfig
from monolith.native_training.slots import CollectingLayoutFactory, EmbeddingLayoutFactory
from monolith.native_training.tasks.monolith_model import EstimatorSpec, MonolithModel
from monolith.ops import Ragged
from monolith.table import Uniform
from monolith.table.optimizers import SGD
from monolith.train import Mode, Trainer, TrainSettings

SHAPES = {"both": (2, 4), "top": (2, 2, 2), "sum": (2, 2), "seq": (2, 3, 2)}


class Layouts(MonolithModel):
    """A loss over layouts of two features and a sequence."""

    def input_fn(self, mode):
        ids = {
            "a": Ragged.from_lists([[1], [2, 2]]),
            "b": Ragged.from_lists([[5, 6], []]),
            "c": Ragged.from_lists([[8, 9], [8]]),
        }
        return [{**ids, "label": torch.tensor([1.0, 0.0])}] * 4

    def look_up(self, features, out_type, name="vec"):
        return self.lookup_embedding_slice(
            features, name, 2, Uniform(-1.0, 1.0), SGD(0.5), out_type=out_type
        )

    def model_fn(self, features, mode):
        for name in "ab":
            self.create_embedding_feature_column(name)
        self.create_embedding_feature_column("c", max_seq_length=3)
        self.outputs = {
            "both": self.look_up(["a", "b"], "concat"),
            "top": self.look_up([("a", 2), ("b", 2)], "stack", "other"),
            "sum": self.look_up({"b": 2, "a": 2}, "add_n", "third"),
            "seq": self.look_up(["c"], None)[0],
        }
        self.factory = self.ctx.layout_factory
        loss = sum(((n + out) ** 2).sum() for n, out in enumerate(self.outputs.values()))
        return self.end(mode, loss, features["label"])

    def end(self, mode, loss, label):
        return EstimatorSpec(label, self.outputs["both"].sum(1).sigmoid(), "x", loss)


def make(*, is_fused, cls=Layouts, **params):
    return cls.params().set(enable_fused_layout=is_fused, **params).instantiate()


def rows(task, steps=4):
    """The rows of all tables after a run."""
    trainer = Trainer(task, TrainSettings(steps=steps))
    trainer.fit()
    keys = {"a": [1, 2], "b": [5, 6], "c": [8, 9]}
    tables = trainer.features.tables
    return {name: tables[name].lookup(torch.tensor(ids)) for name, ids in keys.items()}


def test_a_layout_has_the_name_of_its_slice_and_the_digest_of_its_features():
    task = make(is_fused=False)
    _ = task.features
    digest = hashlib.md5(b"a,b").hexdigest()
    assert {f"vec_{digest}", f"other_{digest}", f"third_{digest}"} < set(task.layout_dict)
    slices = [SliceConfig("b", 4, 6), SliceConfig("a", 4, 6)]
    assert task.layout_dict[f"third_{digest}"] == OutConfig(slices, OutType.ADDN)


@pytest.mark.parametrize("is_fused", [False, True])
def test_lookups_have_the_shapes_of_their_type(is_fused):
    task = make(is_fused=is_fused)
    rows(task, steps=1)
    assert {name: tuple(out.shape) for name, out in task.outputs.items()} == SHAPES


def test_fused_layouts_train_as_slices_do():
    plain, fused = (rows(make(is_fused=is_fused)) for is_fused in (False, True))
    before = rows(make(is_fused=True), steps=1)
    for name in "abc":
        torch.testing.assert_close(plain[name], fused[name])
        assert not torch.equal(before[name], fused[name])


def test_fused_layouts_are_of_the_factory_of_layouts():
    task = make(is_fused=True)
    rows(task, steps=1)
    assert isinstance(task.factory, EmbeddingLayoutFactory)
    assert task.ctx.feature_factory is None
    assert task.is_fused_layout()
    assert not make(is_fused=False).is_fused_layout()
    name = next(name for name in task.factory.layouts if name.startswith("vec_"))
    assert task.factory.get_layout(name) is task.factory.get_layout(name)


class Handed(Layouts):
    """Hands the gradients of layouts in."""

    def create_model_fn(self):
        inner = super().create_model_fn()

        def model_fn(features, mode, config):
            spec = inner(features, mode, config)
            if mode != Mode.TRAIN:
                return spec
            layouts = self.ctx.layout_factory.flattened_layout()
            gradients = torch.autograd.grad(spec.loss, layouts)
            op = self.ctx.apply_embedding_gradients(zip(gradients, layouts, strict=True))
            return spec._replace(train_op=op)

        return model_fn


def test_gradients_of_layouts_are_handed_in():
    handed, plain = rows(make(is_fused=True, cls=Handed)), rows(make(is_fused=False))
    for name in "abc":
        torch.testing.assert_close(handed[name], plain[name])


class Groups(Layouts):
    """Looks groups of features up."""

    def model_fn(self, features, mode):
        out = self.lookup_embedding_slice([["a", "b"], ["c"]], "vec", 2, out_type="concat")
        return EstimatorSpec(None, out.sum(1), "x", out.sum(), classification=False)


def test_groups_have_no_fused_layout():
    assert len(make(is_fused=False, cls=Groups).features) == 3
    with pytest.raises(ValueError, match=r"^group pool is not support when fused_layout$"):
        _ = make(is_fused=True, cls=Groups).features


def test_an_unknown_type_of_output_is_refused():
    class Unknown(Layouts):
        def model_fn(self, features, mode):
            return self.look_up(["a"], "mean")

    with pytest.raises(ValueError, match="expected concat, stack, add_n or None, got 'mean'"):
        _ = make(is_fused=True, cls=Unknown).features


def test_a_layout_that_is_not_there_is_refused():
    with pytest.raises(KeyError, match="expected a layout"):
        CollectingLayoutFactory(2).get_layout("vec")
    with pytest.raises(KeyError, match="expected a feature with a column, got 'a'"):
        CollectingLayoutFactory(2).slice_of("a", 0, 1)


def test_a_name_is_one_layout():
    factory = CollectingLayoutFactory(2)
    factory.add_layout("vec", OutConfig([SliceConfig("a", 0, 2)], OutType.CONCAT))
    with pytest.raises(ValueError, match=r"the same slices in every call.*layout 'vec'"):
        factory.add_layout("vec", OutConfig([SliceConfig("a", 0, 2)], OutType.STACK))


class Numbers(Layouts):
    """Collects the slots by name."""

    def model_fn(self, features, mode):
        names = ["c", "a", "b", 7]
        columns = [self.create_embedding_feature_column(name) for name in names]
        self.numbers = {c.feature_name: c.feature_slot.config.slot_id for c in columns}
        self.thresholds = {c.feature_slot.config.occurrence_threshold for c in columns}
        out = self.look_up(["a", "b", "c"], "add_n")
        self.look_up([7], "add_n")
        return EstimatorSpec(None, out.sum(1), "x", out.sum(), classification=False)


def test_slots_come_from_the_feature_list(tmp_path):
    path = tmp_path / "feature_list.conf"
    path.write_text("feature_name=f_a slot=1\nfeature_name=b\nfeature_name=fc_hour slot=7\n")
    task = make(is_fused=False, cls=Numbers, feature_list=str(path), default_occurrence_threshold=2)
    _ = task.features
    assert task.numbers == {"c": 2, "a": 1, "b": 3, "fc_hour": 7}
    assert task.thresholds == {2}


def test_names_without_a_number_get_the_first_free_one():
    task = make(is_fused=False, cls=Numbers)
    _ = task.features
    assert task.numbers == {"c": 1, "a": 2, "b": 3, "fc_slot_7": 7}
