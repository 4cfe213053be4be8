import pytest
import torch

from monolith.checkpoint import existing_checkpoints, load
from monolith.checkpoint.run_lock import only_run
from monolith.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from monolith.nn import Feature
from monolith.table import Budget, Segment, Table, TableConfig
from monolith.table.optimizers import Adagrad, Adam
from monolith.train import Trainer, TrainSettings
from monolith.train.imported_rows import ImportCounts, open_target, rows_with_new_state
from tests.train.tasks import Clicks, Counting, clicks, state_of

KEYS = torch.tensor([3, -1, 1 << 40])
WEIGHTS = torch.arange(12.0).reshape(3, 4)


class Small(Clicks):
    features = (
        Feature("user", dim=4, budget=Budget(20_000, "refuse"), optimizer=Adagrad(0.1)),
        Feature("item", dim=4, budget=Budget(20_000, "evict_oldest"), optimizer=Adagrad(0.1)),
    )


def import_users(directory, task=None, keys=KEYS):
    """Import rows of users and return the prefix of the saved checkpoint."""
    with open_target(task or Clicks(), directory) as target:
        target.import_weights(target.table("user"), keys, WEIGHTS)
        return target.save()


def test_a_new_folder_gets_a_checkpoint_with_the_rows_and_a_new_model(tmp_path):
    prefix = import_users(tmp_path / "new")
    with Trainer(Clicks()) as trainer:
        new = state_of(trainer)[1]
        trainer.restore(prefix)
        assert torch.equal(trainer.features.tables["user"].lookup(KEYS), WEIGHTS)
        assert (len(trainer.features.tables["item"]), state_of(trainer)[1]) == (0, new)


def test_a_run_goes_on_from_the_imported_rows_as_one_that_had_them_assigned(tmp_path):
    now = 1_700_000_000
    with open_target(Clicks(), tmp_path) as target:
        target.import_weights(target.table("user"), KEYS, WEIGHTS, torch.full_like(KEYS, now))
        target.save()
    states = []
    for prefix in (tmp_path, None):
        with Trainer(Clicks(clicks(6, time=torch.full((8,), now)))) as trainer:
            if prefix:
                trainer.restore(prefix)
            else:
                trainer.features.tables["user"].assign(KEYS, WEIGHTS, now=now)
            trainer.fit()
            states.append(state_of(trainer))
    assert states[0] == states[1]


def test_a_checkpoint_of_the_task_keeps_its_step_model_and_other_rows(tmp_path):
    with Trainer(Clicks(), TrainSettings(checkpoint_dir=str(tmp_path))) as trainer:
        trainer.fit()
        rows, dense = state_of(trainer)
    assert import_users(tmp_path).endswith("model.ckpt-6-import1")
    with Trainer(Clicks()) as trainer:
        trainer.restore(tmp_path)
        assert trainer.state.step == 6
        after = state_of(trainer)
    assert (after[0]["item"], after[1]) == (rows["item"], dense)
    assert {row[0] for row in after[0]["user"]} == {row[0] for row in rows["user"]} | {-1, 1 << 40}


def test_no_older_checkpoint_is_removed_or_replaced(tmp_path):
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=1, keep=0)
    with Trainer(Clicks(clicks(8)), settings) as trainer:
        trainer.fit()
    before = {prefix: load(prefix).read() for prefix in existing_checkpoints(tmp_path)}
    prefixes = [import_users(tmp_path) for _ in range(2)]
    assert prefixes == [f"{tmp_path}/model.ckpt-8-import{n}" for n in (1, 2)]
    assert set(existing_checkpoints(tmp_path)) == {*before, *prefixes}
    assert {prefix: load(prefix).read() for prefix in before} == before
    assert load(tmp_path).prefix == prefixes[-1]


def test_checkpoints_of_imports_go_with_the_others_when_a_run_goes_on(tmp_path):
    for _ in range(3):
        import_users(tmp_path)
    with Trainer(Clicks(), TrainSettings(checkpoint_dir=str(tmp_path), keep=2)) as trainer:
        trainer.restore(tmp_path)
        trainer.fit()
    names = {prefix.rpartition("/")[2] for prefix in existing_checkpoints(tmp_path)}
    assert names == {"model.ckpt-0-import1", "model.ckpt-0-import2", "model.ckpt-6"}


def test_rows_are_counted_as_new_and_replaced(tmp_path):
    with open_target(Clicks(), tmp_path) as target:
        table = target.table("user")
        for keys in (KEYS, torch.tensor([3, 4, 5])):
            target.import_weights(table, keys, WEIGHTS)
        assert target.counts == {"user": ImportCounts(num_rows=6, num_new=5, num_replaced=1)}


def test_an_unknown_feature_names_the_nearest(tmp_path):
    with open_target(Clicks(), tmp_path) as target:
        with pytest.raises(NotFoundError, match="got 'users'; did you mean 'user'\\?"):
            target.table("users")
        with pytest.raises(NotFoundError, match="got 'zzz'; it has user, item"):
            target.table("zzz")


def test_a_feature_that_shares_a_table_names_that_table(tmp_path):
    class Shared(Clicks):
        features = (*Clicks.features, Feature("history", shares="item"))

    with open_target(Shared(), tmp_path) as target:
        assert target.table("history") is target.table("item")


def test_the_tables_are_closed_at_the_end(tmp_path):
    with open_target(Clicks(), tmp_path) as target:
        table = target.table("user")
    with pytest.raises(FailedPreconditionError, match="expected an open table"):
        table.lookup(KEYS)


def test_nothing_is_written_without_a_save(tmp_path):
    with open_target(Clicks(), tmp_path / "new") as target:
        target.import_weights(target.table("user"), KEYS, WEIGHTS)
    assert not (tmp_path / "new").exists()


def test_a_folder_in_which_a_run_saves_is_refused(tmp_path):
    message = "expected one run that saves into"
    with (
        only_run(str(tmp_path)),
        pytest.raises(FailedPreconditionError, match=message),
        open_target(Clicks(), tmp_path),
    ):
        pass


def test_a_run_that_begins_during_the_import_is_not_overwritten(tmp_path):
    path = tmp_path / "new"
    with open_target(Clicks(), path) as target:
        with only_run(str(path)), pytest.raises(FailedPreconditionError, match="one run"):
            target.save()
        other = import_users(path)
        with pytest.raises(FailedPreconditionError, match=r"model\.ckpt-0 of another run"):
            target.save()
    assert [other] == existing_checkpoints(path)


def test_a_target_saves_more_than_once(tmp_path):
    with open_target(Clicks(), tmp_path / "new") as target:
        first = target.save()
        target.import_weights(target.table("user"), KEYS, WEIGHTS)
        prefix = target.save()
    assert len(load(first).load_tables()["user"]) == 0
    assert len(load(prefix).load_tables()["user"]) == 3


def test_a_checkpoint_of_another_task_is_refused(tmp_path):
    with open_target(Counting(), tmp_path) as target:
        target.save()
    with pytest.raises(NotFoundError, match="of another model"):
        import_users(tmp_path)


def test_the_prefix_of_a_checkpoint_is_no_folder(tmp_path):
    prefix = import_users(tmp_path)
    with pytest.raises(InvalidArgumentError, match=f"got the checkpoint {prefix}; it is in"):
        import_users(prefix)


def test_a_budget_that_refuses_rows_ends_the_import_and_one_that_evicts_is_counted(tmp_path):
    keys, weights = torch.arange(1000), torch.zeros(1000, 4)
    with open_target(Small(), tmp_path) as target:
        with pytest.raises(FailedPreconditionError, match=r"1000 more rows, got none for \d+ of"):
            target.import_weights(target.table("user"), keys, weights)
        for part in keys.split(250):
            target.import_weights(target.table("item"), part, weights[:250])
        num_kept = len(target.table("item"))
        assert target.counts["item"].num_without_room == 1000 - num_kept > 0


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_rows_with_new_state_are_those_of_an_assignment(precision):
    segments = [Segment(1, Adagrad(0.1)), Segment(3, Adam(), precision=precision)]
    config = TableConfig("t", segments)
    table, assigned = Table(config), Table(config)
    rows = rows_with_new_state(config, KEYS, WEIGHTS, torch.full_like(KEYS, 9))
    table.import_rows(rows)
    assigned.assign(KEYS, WEIGHTS, now=9)
    for one, other in zip(table.export(), assigned.export(), strict=True):
        assert one.keys.equal(other.keys)
        assert one.times.equal(other.times)
        assert all(column.equal(other.columns[name]) for name, column in one.columns.items())
