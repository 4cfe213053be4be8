"""Arguments of a wrong type: an error that names them, and nothing changed or counted."""

import threading

import numpy as np
import pytest
import torch

from monolith.table import Segment, TableConfig
from monolith.table.optimizers import SGD
from tests.suites.table_base import NOW, TableCase, column, exported, keys, refuses
from tests.suites.table_verbs import KEY_VERBS, MATRIX_VERBS, THREADED_VERBS, WRITERS, call

INTEGER = "[Table.{}] expected {} as an integer, got {!r} (table 'user')"


class BadArguments(TableCase):
    @pytest.mark.parametrize("verb", THREADED_VERBS)
    @pytest.mark.parametrize("num_threads", [1.5, "2"])
    def test_num_threads_that_is_no_integer(self, verb, num_threads):
        table = self.table()
        text = INTEGER.format(verb, "num_threads", num_threads)
        with refuses(table, TypeError, text):
            call(table, verb, keys(1), num_threads=num_threads)

    @pytest.mark.parametrize("verb", WRITERS)
    @pytest.mark.parametrize("now", ["x", 1.5, float("inf")])
    def test_now_that_is_no_integer(self, verb, now):
        table = self.table()
        with refuses(table, TypeError, INTEGER.format(verb, "now", now)):
            call(table, verb, keys(1), now=now)

    def test_clock_that_gives_no_integer(self):
        table = self.table(clock=lambda: 1.5)
        with refuses(table, TypeError, INTEGER.format("reinitialize", "the clock's time", 1.5)):
            table.reinitialize(keys(1))

    @pytest.mark.parametrize("step", ["x", 1.0])
    def test_step_that_is_no_integer(self, step):
        table = self.table()
        with refuses(table, TypeError, INTEGER.format("apply_gradients", "step", step)):
            call(table, "apply_gradients", keys(1), step=step)

    def test_learning_rates_that_are_no_sequence_of_numbers(self):
        table = self.table()
        start = "[Table.apply_gradients] expected"
        text = f"{start} learning_rates as a sequence, got 0.1 (table 'user')"
        with refuses(table, TypeError, text):
            call(table, "apply_gradients", keys(1), learning_rates=0.1)
        text = f"{start} learning rate 0 as a number, got 'a' (table 'user')"
        with refuses(table, TypeError, text):
            call(table, "apply_gradients", keys(1), learning_rates=["a"])

    def test_schedule_that_gives_no_number(self):
        table = self.table(optimizer=SGD(lambda step: None))
        text = (
            "[Table.apply_gradients] expected learning rate 0 as a number, got None (table 'user')"
        )
        with refuses(table, TypeError, text):
            call(table, "apply_gradients", keys(1))

    def test_export_with_arguments_of_another_type(self):
        table = self.table()
        with refuses(table, TypeError, INTEGER.format("export", "chunk_rows", 1.5)):
            table.export(chunk_rows=1.5)
        with refuses(table, TypeError, INTEGER.format("export", "after", "x")):
            table.export(after="x")
        with refuses(table, TypeError, INTEGER.format("export", "a partition", 1.5)):
            table.export(partitions=[1.5])
        text = "[Table.export] expected partitions as a sequence, got 5 (table 'user')"
        with refuses(table, TypeError, text):
            table.export(partitions=5)

    def test_rows_that_are_none(self):
        table = self.table()
        text = "[Table.import_rows] expected Rows, got NoneType (table 'user')"
        with refuses(table, TypeError, text):
            table.import_rows(None)

    @pytest.mark.parametrize("verb", KEY_VERBS)
    def test_sparse_keys(self, verb):
        table = self.table()
        text = (
            f"[Table.{verb}] expected keys as a dense tensor, got layout sparse_coo "
            "(table 'user'); call .to_dense()"
        )
        with refuses(table, ValueError, text):
            call(table, verb, keys(1, 2).to_sparse())

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    def test_nested_keys(self):
        table = self.table()
        text = "[Table.lookup] expected keys as a dense tensor, got layout nested (table 'user')"
        with refuses(table, ValueError, text):
            table.lookup(torch.nested.nested_tensor([keys(1, 2)]))

    @pytest.mark.parametrize("verb", MATRIX_VERBS)
    def test_matrix_that_torch_has_yet_to_negate(self, verb):
        table, name = self.table(), MATRIX_VERBS[verb]
        text = (
            f"[Table.{verb}] expected {name} as they are in memory, got a negated view "
            "(table 'user'); call .resolve_neg()"
        )
        with refuses(table, ValueError, text):
            call(table, verb, keys(1), torch._neg_view(column(1)))

    def test_table_of_something_else_than_a_config(self):
        with pytest.raises(TypeError) as caught:
            self.build(Segment(2))
        assert str(caught.value) == "[Table] expected config as a TableConfig, got Segment"

    def test_clock_that_cannot_be_called(self):
        with pytest.raises(TypeError) as caught:
            self.build(TableConfig("user", Segment(2)), clock=5)
        assert str(caught.value) == (
            "[Table] expected clock as a function that gives seconds, got 5 (table 'user')"
        )


class Numbers(TableCase):
    def test_export_resumes_after_a_key_as_tensor_or_numpy_integer(self):
        table = self.table()
        table.lookup_or_insert(keys(*range(10)))
        first = next(table.export(chunk_rows=4))
        rest = exported(table, after=int(first.keys[-1])).keys.tolist()
        assert len(rest) == 6
        assert exported(table, after=first.keys[-1]).keys.tolist() == rest
        assert exported(table, after=np.int64(first.keys[-1])).keys.tolist() == rest

    def test_integers_of_numpy_are_integers(self):
        table = self.build(TableConfig("user", Segment(np.int64(2)), seed=np.int64(3)))
        two = np.int64(2)
        table.apply_gradients(keys(1), torch.ones(1, 2), step=two, now=two, num_threads=two)
        assert len(exported(table, chunk_rows=two, partitions=np.arange(4096))) == 1

    def test_few_keys_start_no_threads_however_many_are_allowed(self, monkeypatch):
        table, seen = self.table(), []
        monkeypatch.setattr(table, "_lookup", lambda *arguments: seen.append(arguments[-1]))
        for n, most in ((0, 8), (10, 30_000), (512, 8), (513, 8), (10_000, 3), (1 << 20, 1 << 40)):
            table.lookup(torch.arange(n), num_threads=most)
        assert seen == [1, 1, 1, 2, 3, 256]

    def test_refused_call_is_not_counted_as_clamped(self):
        table = self.table()
        text = "[Table.apply_gradients] expected finite"
        with pytest.raises(ValueError, match=text.replace("[", r"\[")):
            table.apply_gradients(keys(1), column(float("nan")), now=NOW + 5000)
        assert table.stats()["num_clamped_times"] == 0

    def test_ten_keys_and_thirty_thousand_threads(self):
        table = self.table()
        before = threading.active_count()
        assert table.lookup(keys(*range(10)), num_threads=30_000).shape == (10, 1)
        assert threading.active_count() == before
