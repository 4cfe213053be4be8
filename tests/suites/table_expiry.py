"""Expiry: which rows `evict` removes, and the background sweep."""

import math
import threading

import pytest
import torch

from monolith.errors import FailedPreconditionError
from monolith.table import BackgroundSweep, Expiry, Rows
from tests.suites.table_base import NOW, TableCase, column, keys, random_keys, times
from tests.suites.table_concurrency import run_together
from tests.suites.table_verbs import WRITERS

DAY = 86_400


class Evictions(TableCase):
    def test_vector_of_three_slots(self):
        table = self.table(expiry=Expiry(14, slots={0: 0, 1: 5, 2: 6}))
        numbers = [(1 << 48) | 123, (2 << 48) | 234, (3 << 48) | 456]
        table.assign(keys(*numbers), column(1, 1, 1), now=1234)
        assert table.evict(1234 + 5 * DAY + 60) == 1
        assert table.contains(keys(*numbers)).tolist() == [False, True, True]

    def test_vector_of_twenty_slots(self):
        table = self.table(expiry=Expiry(36_500, slots={slot: slot for slot in range(20)}))
        for slot in range(20):
            for i in range(50):
                table.assign(keys((slot << 48) | i), column(1), now=1234 + i)
        table.evict(1234 + 5 * DAY + DAY // 2)
        numbers = keys(*((slot << 48) | i for slot in range(20) for i in range(50)))
        kept = table.contains(numbers).reshape(20, 50)
        assert not kept[:6].any()
        assert kept[6:].all()

    @pytest.mark.parametrize(("age", "num_evicted"), [(DAY - 1, 0), (DAY, 1), (DAY + 1, 1)])
    def test_row_is_expired_at_exactly_its_days(self, age, num_evicted):
        table = self.table(expiry=Expiry(1))
        table.assign(keys(1), column(1), now=1000)
        assert table.evict(1000 + age) == num_evicted
        assert len(table) == 1 - num_evicted

    def test_reference_is_the_largest_update_time_seen(self):
        table = self.table(expiry=Expiry(1), clock=lambda: 10**9)
        table.assign(keys(1), column(1), now=1000)
        assert table.evict() == 0
        table.assign(keys(2), column(1), now=1000 + DAY)
        assert table.latest_time == 1000 + DAY
        assert table.evict() == 1
        assert table.contains(keys(1, 2)).tolist() == [False, True]

    @pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
    def test_every_writing_verb_is_seen(self, write):
        table = self.table(expiry=Expiry(1))
        write(table, keys(1), now=500)
        write(table, keys(1), now=400)
        assert table.latest_time == 500

    def test_imported_times_are_seen(self):
        table = self.table(expiry=Expiry(1))
        rows = Rows(keys(1, 2), keys(7 * DAY, 3), {"weight/0": column(1, 1)})
        table.import_rows(rows)
        assert table.latest_time == 7 * DAY
        assert table.evict() == 1

    def test_refused_call_is_not_seen_and_clear_forgets(self):
        table = self.table(expiry=Expiry(1))
        with pytest.raises(ValueError, match="finite"):
            table.apply_gradients(keys(1), column(float("nan")))
        assert table.latest_time == 0
        table.assign(keys(1), column(1), now=500)
        table.clear()
        assert table.latest_time == 0

    def test_reads_and_erase_are_not_seen(self):
        table = self.table()
        table.lookup(keys(1))
        table.contains(keys(1))
        table.erase(keys(1))
        assert table.latest_time == 0

    def test_update_prolongs_a_row(self):
        table = self.table(expiry=Expiry(1))
        table.assign(keys(1, 2), column(1, 1), now=1000)
        table.apply_gradients(keys(1), column(1), now=2000)
        assert table.evict(1000 + DAY) == 1
        assert times(table, 1) == [2000]

    def test_days_of_zero_expire_at_once(self):
        table = self.table(expiry=Expiry(0, slots={1: 1}))
        table.assign(keys(1, 1 << 48), column(1, 1))
        assert table.evict() == 1
        assert table.contains(keys(1, 1 << 48)).tolist() == [False, True]

    def test_default_days_and_no_expiry_keep_rows(self):
        for expiry in (Expiry(), None):
            table = self.table(expiry=expiry)
            table.assign(keys(1), column(1), now=0)
            assert table.evict((1 << 32) - 1) == (1 if expiry else 0)
            assert table.evict(36_500 * DAY - 1) == 0

    def test_evicted_rows_are_counted_apart_from_erased_ones(self):
        table = self.table(expiry=Expiry(1))
        table.assign(keys(1, 2, 3), column(1, 1, 1), now=0)
        table.erase(keys(3))
        table.evict(DAY)
        stats = table.stats()
        assert (stats["num_evicted"], stats["num_erased"], stats["num_rows"]) == (2, 1, 0)

    def test_evicted_row_starts_afresh(self):
        table = self.table(expiry=Expiry(1))
        table.assign(keys(1), column(5), now=0)
        table.evict(DAY)
        table.assign_add(keys(1), column(1), now=DAY)
        assert table.lookup(keys(1)).tolist() == [[1]]

    def test_space_of_evicted_rows_is_used_again(self):
        table = self.table(8, expiry=Expiry(1))
        numbers = random_keys(6000)
        table.assign(numbers[:3000].contiguous(), torch.zeros(3000, 8), now=0)
        full = table.memory_report()["total_bytes"]
        assert table.evict(DAY) == 3000
        table.assign(numbers[3000:].contiguous(), torch.zeros(3000, 8), now=DAY)
        assert table.memory_report()["total_bytes"] <= 1.1 * full

    def test_slices_add_up(self):
        table = self.table(expiry=Expiry(1))
        table.assign(random_keys(5000), torch.zeros(5000, 1), now=0)
        assert sum(table.evict_in_slices(DAY)) == 5000

    @pytest.mark.parametrize("now", [-1, 1 << 32])
    def test_reference_outside_its_range(self, now):
        table = self.table(expiry=Expiry(1))
        text = f"[Table.evict] expected now in [0, 4294967295] seconds, got {now} (table 'user')"
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
            table.evict(now)
        assert str(caught.value) == text

    def test_reference_that_is_no_integer(self):
        text = r"\[Table.evict\] expected now as an integer, got 1.5 \(table 'user'\)"
        with pytest.raises(TypeError, match=text):
            self.table(expiry=Expiry(1)).evict(1.5)

    @pytest.mark.parametrize("verb", ["evict", "export_candidates"])
    def test_closed_table_forgets_nothing_more(self, verb):
        table = self.table(expiry=Expiry(1))
        table.close()
        with pytest.raises(FailedPreconditionError, match=rf"\[Table.{verb}\] expected an open"):
            getattr(table, verb)()

    def test_eviction_beside_updates_keeps_updated_rows(self):
        table = self.table(4, expiry=Expiry(1))
        kept, expired = random_keys(4000).split(2000)
        table.assign(expired, torch.ones(2000, 4), now=0)

        def update():
            for _ in range(20):
                table.assign(kept, torch.ones(2000, 4), now=NOW)

        def evict():
            return sum(table.evict(DAY) for _ in range(20))

        def watch():
            for _ in range(20):
                rows = table.lookup(kept)
                assert (rows == rows[:, :1]).all()

        results = run_together(update, evict, watch)
        assert results[1] == 2000
        assert table.contains(kept).all()
        assert len(table) == 2000


class Sweeps(TableCase):
    def test_sweep_evicts_until_it_is_closed(self):
        table = self.table(expiry=Expiry(1))
        table.assign(keys(1, 2), column(1, 1), now=0)
        table.assign(keys(3), column(1), now=DAY)
        is_done = threading.Event()
        with BackgroundSweep(table, every_seconds=0.001) as sweep:
            while sweep.num_sweeps == 0:
                assert not is_done.wait(0.001)
        assert (sweep.num_evicted, len(table)) == (2, 1)
        sweep.close()
        num_sweeps = sweep.num_sweeps
        assert not is_done.wait(0.01)
        assert sweep.num_sweeps == num_sweeps

    def test_error_of_the_sweep_is_raised_at_close(self):
        table = self.table(expiry=Expiry(1))
        sweep = BackgroundSweep(table, every_seconds=0.001)
        table.close()
        sweep._thread.join(timeout=60)
        with pytest.raises(FailedPreconditionError, match=r"\[Table.evict\] expected an open"):
            sweep.close()
        sweep.close()

    @pytest.mark.parametrize("pause", [0, -1, math.nan, math.inf])
    def test_pause_outside_its_range(self, pause):
        most = f"{threading.TIMEOUT_MAX:.0f}"
        text = f"[BackgroundSweep] expected every_seconds in (0, {most}], got {pause} "
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole text is compared
            BackgroundSweep(self.table(), every_seconds=pause)
        assert str(caught.value) == f"{text}(table 'user')"

    def test_pause_that_is_no_number(self):
        text = r"\[BackgroundSweep\] expected every_seconds as a number, got '1' \(table 'user'\)"
        with pytest.raises(TypeError, match=text):
            BackgroundSweep(self.table(), every_seconds="1")
