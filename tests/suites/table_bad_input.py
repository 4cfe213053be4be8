"""Bad input: a clear error with the numbers that were compared, and nothing changed."""

import pytest
import torch

from monolith.table import Rows
from monolith.table.optimizers import BatchSoftmax
from tests.suites.table_base import NOW, TableCase, column, exported, keys, refuses
from tests.suites.table_verbs import KEY_VERBS, MATRIX_VERBS, THREADED_VERBS, WRITERS, call

MAX_TIME = (1 << 32) - 1
MAX = "3.40282e+38"


class BadInput(TableCase):
    def table_of_two(self, dim=2, **options):
        table = self.table(dim, **options)
        table.assign(keys(1, 2), torch.ones(2, dim))
        return table

    @pytest.mark.parametrize("verb", KEY_VERBS)
    def test_keys_that_are_no_tensor(self, verb):
        table = self.table_of_two()
        text = f"[Table.{verb}] expected keys as a torch.Tensor, got list (table 'user')"
        with refuses(table, TypeError, text):
            call(table, verb, [1, 2])

    @pytest.mark.parametrize("verb", KEY_VERBS)
    def test_keys_of_another_dtype(self, verb):
        table = self.table_of_two()
        text = (
            f"[Table.{verb}] expected keys of dtype int64, got int32 (table 'user'); "
            "cast with .to(torch.int64)"
        )
        with refuses(table, TypeError, text):
            call(table, verb, keys(1, 2).int())

    @pytest.mark.parametrize("verb", KEY_VERBS)
    def test_keys_on_another_device(self, verb):
        table = self.table_of_two()
        text = (
            f"[Table.{verb}] expected keys on device cpu, got meta (table 'user'); move with .cpu()"
        )
        with refuses(table, ValueError, text):
            call(table, verb, keys(1, 2).to("meta"))

    @pytest.mark.parametrize("verb", KEY_VERBS)
    def test_keys_of_two_dimensions(self, verb):
        table = self.table_of_two()
        text = f"[Table.{verb}] expected keys with 1 dimension(s), got shape (1, 2) (table 'user')"
        with refuses(table, ValueError, text):
            call(table, verb, keys(1, 2).reshape(1, 2))

    @pytest.mark.parametrize("verb", KEY_VERBS)
    def test_keys_with_strides(self, verb):
        table = self.table_of_two()
        text = (
            f"[Table.{verb}] expected contiguous keys, got strides (2,) (table 'user'); "
            "call .contiguous()"
        )
        with refuses(table, ValueError, text):
            call(table, verb, keys(1, 2, 3, 4)[::2])

    @pytest.mark.parametrize("verb", KEY_VERBS)
    def test_more_keys_than_a_call_takes(self, verb, monkeypatch):
        table = self.table_of_two()
        monkeypatch.setattr("monolith.table._checks.MAX_BATCH", 3)
        text = f"[Table.{verb}] expected at most 3 keys, got 4 (table 'user'); split the batch"
        with refuses(table, ValueError, text):
            call(table, verb, keys(1, 2, 3, 4))

    def test_two_to_the_31_keys_are_refused_before_any_is_read(self, tmp_path):
        # A file of holes: neither disk nor memory is touched.
        huge = torch.from_file(str(tmp_path / "keys"), True, 1 << 31, dtype=torch.int64)
        table = self.table_of_two()
        for verb in KEY_VERBS:
            text = (
                f"[Table.{verb}] expected at most {(1 << 31) - 1} keys, got {1 << 31} "
                "(table 'user'); split the batch"
            )
            with refuses(table, ValueError, text):
                call(table, verb, huge, torch.zeros(0, 2))

    @pytest.mark.parametrize("verb", MATRIX_VERBS)
    def test_matrix_of_another_dtype(self, verb):
        table, name = self.table_of_two(), MATRIX_VERBS[verb]
        text = (
            f"[Table.{verb}] expected {name} of dtype float32, got float64 (table 'user'); "
            "cast with .to(torch.float32)"
        )
        with refuses(table, TypeError, text):
            call(table, verb, keys(1), torch.zeros(1, 2).double())

    @pytest.mark.parametrize("verb", MATRIX_VERBS)
    @pytest.mark.parametrize("shape", [(3, 2), (1, 2), (2, 3), (0, 2)])
    def test_matrix_of_another_shape(self, verb, shape):
        table, name = self.table_of_two(), MATRIX_VERBS[verb]
        text = f"[Table.{verb}] expected {name} of shape (2, 2), got {shape} (table 'user')"
        with refuses(table, ValueError, text):
            call(table, verb, keys(1, 5), torch.zeros(shape))

    @pytest.mark.parametrize("verb", MATRIX_VERBS)
    def test_matrix_with_strides_or_on_another_device(self, verb):
        table, name = self.table_of_two(), MATRIX_VERBS[verb]
        text = (
            f"[Table.{verb}] expected contiguous {name}, got strides (1, 2) (table 'user'); "
            "call .contiguous()"
        )
        with refuses(table, ValueError, text):
            call(table, verb, keys(1, 5), torch.zeros(2, 2).t())
        text = (
            f"[Table.{verb}] expected {name} on device cpu, got meta (table 'user'); "
            "move with .cpu()"
        )
        with refuses(table, ValueError, text):
            call(table, verb, keys(1, 5), torch.zeros(2, 2, device="meta"))

    @pytest.mark.parametrize("verb", THREADED_VERBS)
    def test_num_threads_below_one(self, verb):
        table = self.table_of_two()
        text = f"[Table.{verb}] expected num_threads >= 1, got 0 (table 'user')"
        with refuses(table, ValueError, text):
            call(table, verb, keys(1, 5), num_threads=0)

    @pytest.mark.parametrize("verb", WRITERS)
    def test_now_below_zero(self, verb):
        table = self.table_of_two()
        text = f"[Table.{verb}] expected now in [0, {MAX_TIME}] seconds, got -1 (table 'user')"
        with refuses(table, ValueError, text):
            call(table, verb, keys(1, 5), now=-1)

    def test_clock_beyond_the_largest_time(self):
        now = [NOW]
        table = self.table_of_two(clock=lambda: now[0])
        now[0] = MAX_TIME + 1
        text = (
            f"[Table.assign] expected now in [0, {MAX_TIME}] seconds, got {MAX_TIME + 1} "
            "(table 'user')"
        )
        with refuses(table, ValueError, text):
            table.assign(keys(5), torch.zeros(1, 2))

    def test_unknown_rule_for_missing_keys(self):
        table = self.table_of_two()
        text = "[Table.lookup] expected missing 'initial' or 'zeros', got 'ones' (table 'user')"
        with refuses(table, ValueError, text):
            table.lookup(keys(1), missing="ones")

    def test_number_of_learning_rates(self):
        table = self.table_of_two()
        text = (
            "[Table.apply_gradients] expected 1 learning rate(s), one per segment, got 2 "
            "(table 'user')"
        )
        with refuses(table, ValueError, text):
            call(table, "apply_gradients", keys(1, 5), learning_rates=[0.1, 0.2])

    @pytest.mark.parametrize("rate", [-0.5, float("nan"), float("inf"), 1e39])
    def test_learning_rate_outside_its_range(self, rate):
        table = self.table_of_two()
        text = (
            f"[Table.apply_gradients] expected learning rates in [0, {MAX}], got {rate} "
            "(table 'user')"
        )
        with refuses(table, ValueError, text):
            call(table, "apply_gradients", keys(1, 5), learning_rates=[rate])

    @pytest.mark.parametrize("step", [-1, 1 << 63])
    def test_step_outside_its_range(self, step):
        table = self.table_of_two()
        text = f"[Table.apply_gradients] expected step in [0, 2**63), got {step} (table 'user')"
        with refuses(table, ValueError, text):
            call(table, "apply_gradients", keys(1, 5), step=step)


class BadExport(TableCase):
    def test_chunk_rows_below_one(self):
        table = self.table()
        text = "[Table.export] expected chunk_rows >= 1, got 0 (table 'user')"
        with refuses(table, ValueError, text):
            table.export(chunk_rows=0)

    @pytest.mark.parametrize("partition", [-1, 4096])
    def test_partition_outside_its_range(self, partition):
        table = self.table()
        text = f"[Table.export] expected partitions in [0, 4096), got {partition} (table 'user')"
        with refuses(table, ValueError, text):
            table.export(partitions=[0, partition])

    @pytest.mark.parametrize("after", [1 << 63, -(1 << 63) - 1])
    def test_resume_behind_a_number_that_is_no_key(self, after):
        table = self.table()
        text = f"[Table.export] expected after as an int64 key, got {after} (table 'user')"
        with refuses(table, ValueError, text):
            table.export(after=after)

    @pytest.mark.parametrize("verb", ["export", "export_candidates", "release"])
    def test_partitions_of_a_cut_are_checked(self, verb):
        with self.table().cut() as snapshot, pytest.raises(ValueError, match="got 4096") as caught:
            getattr(snapshot, verb)([0, 4096])
        text = f"[Table.{verb}] expected partitions in [0, 4096), got 4096 (table 'user')"
        assert str(caught.value) == text


class BadImport(TableCase):
    def refuse(self, error, text, rows):
        table = self.table(2)
        table.assign(keys(1), torch.ones(1, 2))
        with refuses(table, error, f"[Table.import_rows] {text}"):
            table.import_rows(rows)

    def test_columns_of_another_table(self):
        rows = Rows(keys(1), keys(1), {"weight/0": torch.zeros(1, 2), "state/0/norm": column(1)})
        text = "expected columns ['weight/0'], got ['state/0/norm', 'weight/0'] (table 'user')"
        self.refuse(ValueError, text, rows)

    def test_column_of_another_width(self):
        rows = Rows(keys(1), keys(1), {"weight/0": torch.zeros(1, 3)})
        self.refuse(
            ValueError, "expected weight/0 of shape (1, 2), got (1, 3) (table 'user')", rows
        )

    def test_keys_and_times_of_another_dtype(self):
        columns = {"weight/0": torch.zeros(1, 2)}
        text = "expected {} of dtype int64, got int32 (table 'user'); cast with .to(torch.int64)"
        self.refuse(TypeError, text.format("keys"), Rows(keys(1).int(), keys(1), columns))
        self.refuse(TypeError, text.format("times"), Rows(keys(1), keys(1).int(), columns))

    def test_integer_state_as_floats(self):
        table = self.table(optimizer=BatchSoftmax())
        text = (
            "[Table.import_rows] expected state/0/global_step of dtype int64, got float32 "
            "(table 'user'); cast with .to(torch.int64)"
        )
        columns = {"weight/0": column(1), "state/0/global_step": column(1)}
        with refuses(table, TypeError, text):
            table.import_rows(Rows(keys(1), keys(1), columns))

    @pytest.mark.parametrize(("low", "high"), [(-1, 5), (0, MAX_TIME + 1)])
    def test_times_outside_their_range(self, low, high):
        rows = Rows(keys(3, 4), keys(high, low), {"weight/0": torch.zeros(2, 2)})
        text = f"expected times in [0, {MAX_TIME}], got [{low}, {high}] (table 'user')"
        self.refuse(ValueError, text, rows)

    def test_refused_chunk_changes_nothing_at_all(self):
        table = self.table(2)
        rows = Rows(keys(3, 4), keys(1, -1), {"weight/0": torch.zeros(2, 2)})
        with pytest.raises(ValueError, match="expected times"):
            table.import_rows(rows)
        assert len(exported(table)) == 0
