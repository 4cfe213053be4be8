import pytest
import torch

from monolith.checkpoint import open_checkpoint
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.native_training.saver import (
    CUSTOM_RESTORE_OP,
    CustomRestore,
    PartialRecoverySaver,
    calc_feed_dict,
)
from monolith.train.driver import Run


def saved(path, **tensors):
    return PartialRecoverySaver(tensors).save(Run(), path / "c", global_step=7)


def run_with(custom):
    run = Run()
    run.add(CUSTOM_RESTORE_OP, custom)
    return run


def clearing(weight, steps):
    return CustomRestore([lambda: weight.fill_(-1.0), steps.append])


@pytest.mark.req("NT-SAVE-T6")
def test_the_dense_network_is_cleared_once(tmp_path):
    prefix, weight, steps = saved(tmp_path, w=torch.ones(2)), torch.zeros(2), []
    saver = PartialRecoverySaver({"w": weight}, model_dir=tmp_path)
    saver.restore(run_with(clearing(weight, steps)), prefix)
    assert (weight.tolist(), steps) == ([-1.0, -1.0], [7])
    assert (tmp_path / "clear_nn").read_text() == "clean nn done!"
    saver.restore(run_with(clearing(weight, steps)), prefix)
    assert (weight.tolist(), steps) == ([1.0, 1.0], [7])


@pytest.mark.req("NT-SAVE-T6")
def test_without_a_second_action_the_step_stays(tmp_path):
    prefix, weight = saved(tmp_path, w=torch.ones(2)), torch.zeros(2)
    run = run_with(CustomRestore([lambda: weight.fill_(-1.0)]))
    saver = PartialRecoverySaver({"w": weight})
    saver.restore(run, prefix)
    assert weight.tolist() == [-1.0, -1.0]
    assert run.collection(CUSTOM_RESTORE_OP) == ()
    saver.restore(run, prefix)
    assert weight.tolist() == [1.0, 1.0]


def test_without_a_state_file_everything_is_restored(tmp_path):
    weight, saver = torch.ones(1), PartialRecoverySaver({"w": torch.ones(1)})
    prefix = saver.save(Run(), tmp_path / "c", write_state=False)
    target = torch.zeros(1)
    PartialRecoverySaver({"w": target}).restore(run_with(clearing(weight, [])), prefix)
    assert target.tolist() == [1.0]


@pytest.mark.parametrize("alias_map", [None, {"new": "old"}])
def test_a_run_that_exports_restores_what_was_saved(tmp_path, alias_map):
    prefix, target = saved(tmp_path, w=torch.ones(1), old=torch.ones(1)), torch.zeros(1)
    custom = CustomRestore([pytest.fail], {"new": target}, alias_map)
    run = Run(is_exporting=True)
    run.add(CUSTOM_RESTORE_OP, custom)
    PartialRecoverySaver({"w": target}, model_dir=tmp_path).restore(run, prefix)
    assert target.tolist() == [1.0]
    assert run.collection(CUSTOM_RESTORE_OP) == (custom,)
    assert not (tmp_path / "clear_nn").exists()


def test_an_export_beside_training_leaves_the_custom_restore_to_it(tmp_path):
    prefix, weight, steps = saved(tmp_path, w=torch.ones(1)), torch.zeros(1), []
    saver, training = PartialRecoverySaver({"w": weight}), run_with(clearing(weight, steps))
    with training.as_current(), Run(is_exporting=True).as_current() as export:
        saver.restore(export, prefix)
    assert weight.tolist() == [1.0]
    saver.restore(training, prefix)
    assert (weight.tolist(), steps) == ([-1.0], [7])


def test_without_a_run_everything_is_restored(tmp_path):
    target = torch.zeros(1)
    PartialRecoverySaver({"w": target}).restore(None, saved(tmp_path, w=torch.ones(1)))
    assert target.tolist() == [1.0]


@pytest.mark.req("NT-SAVE-T7")
def test_a_renamed_parameter_gets_the_old_value(tmp_path):
    prefix = saved(tmp_path, old=torch.ones(2), same=torch.full((1,), 5.0))
    targets = {"new": torch.zeros(2), "same": torch.zeros(1)}

    def init(feed):
        for name, value in feed.items():
            targets[name].copy_(value)

    custom = CustomRestore([init], targets, {"new": "old"})
    PartialRecoverySaver(targets).restore(run_with(custom), prefix)
    assert targets["new"].tolist() == [1.0, 1.0]
    assert targets["same"].tolist() == [5.0]


@pytest.mark.req("NT-SAVE-T7")
@pytest.mark.parametrize("name", ["w", "unknown"])
def test_where_nothing_can_be_mapped_everything_is_restored(tmp_path, name):
    target = {"w": torch.zeros(1)}
    custom = CustomRestore([pytest.fail], {name: target["w"]}, {"unknown": "nowhere"})
    PartialRecoverySaver(target).restore(run_with(custom), saved(tmp_path, w=torch.ones(1)))
    assert target["w"].tolist() == [1.0]


def test_parts_of_a_tensor_are_cut_in_the_order_of_their_numbers(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, old=torch.arange(12.0)))
    parts = {f"new/part_{k}": torch.zeros(size) for k, size in ((10, 1), (2, 8), (0, 3))}
    feed = calc_feed_dict(checkpoint, dict.fromkeys(parts, "old"), parts)
    assert feed["new/part_0"].tolist() == [0.0, 1.0, 2.0]
    assert feed["new/part_10"].tolist() == [11.0]
    with pytest.raises(InvalidArgumentError, match=r"with \[12\] rows in all, got \[3, 8\] of"):
        calc_feed_dict(checkpoint, dict.fromkeys(parts, "old"), dict(list(parts.items())[1:]))


def test_an_old_name_that_is_not_there_is_named(tmp_path):
    checkpoint = open_checkpoint(saved(tmp_path, a=torch.ones(1)))
    targets = {"x": torch.ones(1), "y": torch.ones(1)}
    with pytest.raises(NotFoundError, match=r"\[calc_feed_dict\] expected 'b' in .*, got none of"):
        calc_feed_dict(checkpoint, {"x": "a", "y": "b"}, targets)


@pytest.mark.parametrize(("num_ops", "alias_map"), [(0, None), (3, None), (2, {"a": "b"})])
def test_other_numbers_of_actions_are_refused(num_ops, alias_map):
    with pytest.raises(ValueError, match=rf"init_ops, got {num_ops}$"):
        CustomRestore([print] * num_ops, {}, alias_map)
