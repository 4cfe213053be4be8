import gc
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from monolith import _native
from monolith.native_training.tables.touched_key_set import (
    TOUCHED_KEY_SET_CAPACITY,
    TOUCHED_KEY_SET_CONCURRENCY_LEVEL,
    TouchedKeySet,
    create_touched_key_set,
)


def resident_kib():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4


@pytest.mark.req("NT-TKS-T1")
def test_sets_with_different_suffixes_are_independent():
    a, b = TouchedKeySet(1000, 1, "_a"), TouchedKeySet(1000, 1, "_b")
    a.insert(torch.tensor([1, 2]))
    assert b.steal().tolist() == []
    assert sorted(a.steal().tolist()) == [1, 2]


@pytest.mark.req("NT-TKS-T1")
def test_handles_with_the_same_suffix_share_their_keys():
    a, b = TouchedKeySet(1000, 1, "_a"), TouchedKeySet(1000, 1, "_a")
    a.insert(torch.tensor([1, 2]))
    assert sorted(b.steal().tolist()) == [1, 2]
    assert len(a) == 0


def test_the_set_of_a_name_ends_with_its_last_handle():
    TouchedKeySet(1000, 1, "_a").insert(torch.tensor([1]))
    gc.collect()
    assert len(TouchedKeySet(2000, 4, "_a")) == 0


def test_a_shared_set_with_another_capacity_is_refused():
    held = create_touched_key_set(1000, 3, "_a")
    text = (
        r"\[TouchedKeySet\] expected capacity 1000 and 4 locks, those of the set "
        r"'MonolithTouchedKeySet_a', got 2000 and 1; choose another name_suffix"
    )
    with pytest.raises(ValueError, match=text):
        TouchedKeySet(2000, 1, "_a")
    assert held.capacity == 1000


@pytest.mark.req("NT-TKS-T2")
def test_duplicates_are_kept_once():
    touched = TouchedKeySet(1000, 1)
    for _ in range(2):
        assert touched.insert(torch.tensor([7, 7, 7])) == 0
    assert touched.steal().tolist() == [7]


@pytest.mark.req("NT-TKS-T3")
def test_no_key_is_lost_or_doubled_by_threads():
    touched, per_thread = TouchedKeySet(1_000_000, 64), 20_000
    stolen, is_done = [], threading.Event()

    def insert(first):
        for start in range(first, first + per_thread, 500):
            touched.insert(torch.arange(start, start + 500))

    def steal():
        while not is_done.is_set():
            stolen.append(touched.steal())

    inserters = [threading.Thread(target=insert, args=(i * per_thread,)) for i in range(8)]
    stealer = threading.Thread(target=steal)
    for thread in (*inserters, stealer):
        thread.start()
    for thread in inserters:
        thread.join()
    is_done.set()
    stealer.join()
    everything = torch.cat([*stolen, touched.steal()]).sort().values
    assert torch.equal(everything, torch.arange(8 * per_thread))


@pytest.mark.parametrize(
    "capacity", [32_768, pytest.param(TOUCHED_KEY_SET_CAPACITY, marks=pytest.mark.slow)]
)
def test_ten_threads_clear_the_set_exactly_twenty_times(capacity):
    touched, num_keys, piece = TouchedKeySet(capacity), 20 * capacity + 10_000, 4096

    def insert(first):
        starts = range(first * piece, num_keys, 10 * piece)
        parts = (torch.arange(start, min(start + piece, num_keys)) for start in starts)
        return sum(int(touched.insert(part)) for part in parts)

    with ThreadPoolExecutor(10) as threads:
        num_dropped = sum(threads.map(insert, range(10)))
    assert num_dropped == 20 * (capacity + 1)
    assert len(touched) == num_keys - num_dropped


@pytest.mark.req("NT-TKS-T4")
@pytest.mark.parametrize("shape", [(2, 3), (6,), (1, 6, 1), (0,)])
def test_ids_of_any_shape_are_walked_in_row_major_order(shape):
    ids = torch.arange(7, 13)[: torch.Size(shape).numel()].reshape(shape)
    a, b = TouchedKeySet(3, 1, "_a"), TouchedKeySet(3, 1, "_b")
    assert torch.equal(a.insert(ids), b.insert(ids.flatten()))
    assert sorted(a.steal().tolist()) == sorted(b.steal().tolist())


@pytest.mark.req("NT-TKS-T4")
def test_a_transposed_tensor_is_walked_by_its_own_rows():
    touched = TouchedKeySet(3, 1)
    assert touched.insert(torch.tensor([[1, 2, 3], [4, 5, 6]]).t()) == 4
    assert sorted(touched.steal().tolist()) == [3, 6]


@pytest.mark.req("NT-TKS-T4")
def test_the_drop_count_is_an_int64_scalar():
    dropped = TouchedKeySet(1, 1).insert(torch.tensor([[1, 2, 3]]))
    assert (dropped.dtype, dropped.dim(), dropped.item()) == (torch.int64, 0, 2)


@pytest.mark.req("NT-TKS-T5")
def test_memory_before_the_first_insert_does_not_scale_with_the_capacity():
    before = resident_kib()
    held = [TouchedKeySet(1 << 30, 1 << 20, f"_{i}") for i in range(100)]
    assert resident_kib() - before < 4096
    assert sum(map(len, held)) == 0


@pytest.mark.req("NT-TKS-T6")
@pytest.mark.parametrize("capacity", [0, 1, 5, 40])
def test_random_inserts_equal_a_simple_model(capacity):
    numbers, touched, model = random.Random(capacity), TouchedKeySet(capacity, 2), set()
    for _ in range(200):
        ids = [numbers.randrange(-3, 2 * capacity + 3) for _ in range(numbers.randrange(20))]
        num_dropped = 0
        for key in ids:
            if len(model) > capacity:
                num_dropped += len(model)
                model.clear()
            model.add(key)
        assert touched.insert(torch.tensor(ids, dtype=torch.int64)) == num_dropped
        if numbers.random() < 0.2:
            assert sorted(touched.steal().tolist()) == sorted(model)
            model.clear()


def test_defaults():
    touched = TouchedKeySet()
    assert touched.capacity == TOUCHED_KEY_SET_CAPACITY == 2_097_152
    assert touched.concurrency_level == TOUCHED_KEY_SET_CONCURRENCY_LEVEL == 1024
    core = _native.TouchedKeySet(touched.capacity, touched.concurrency_level)
    assert (core.num_buckets, core.num_locks) == (4_194_304, 1024)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((-1, 1), r"expected capacity in \[0, 1099511627776\], got -1"),
        ((1, 0), r"expected concurrency_level in \[1, 1048576\], got 0"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, text):
    with pytest.raises(ValueError, match=r"\[TouchedKeySet\] " + text):
        TouchedKeySet(*arguments)


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([1], "expected ids as a torch.Tensor, got list"),
        (
            torch.tensor([1.0]),
            "expected ids of dtype int64 on device cpu, got float32 on cpu",
        ),
        (
            torch.empty(1, dtype=torch.int64, device="meta"),
            "expected ids of dtype int64 on device cpu, got int64 on meta",
        ),
    ],
)
def test_ids_that_are_no_keys_are_refused(ids, text):
    touched = TouchedKeySet(1000, 1)
    with pytest.raises(TypeError) as caught:
        touched.insert(ids)
    assert str(caught.value) == f"[TouchedKeySet.insert] {text}"
    assert len(touched) == 0
