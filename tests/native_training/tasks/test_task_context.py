import threading

from monolith.native_training.tasks.task_context import NativeTaskContext, get, with_ctx


def test_the_context_of_a_job_of_one_worker_is_the_default():
    assert get() == NativeTaskContext(0, 0, 1, 0, "", None, "")


def test_a_block_has_its_own_and_gives_the_one_before_back():
    outer, inner = NativeTaskContext(num_ps=2), NativeTaskContext(num_ps=3)
    with with_ctx(outer):
        with with_ctx(inner):
            assert get() is inner
        assert get() is outer
    assert get().num_ps == 0


def test_threads_do_not_see_each_other():
    seen = []
    with with_ctx(NativeTaskContext(num_ps=2)):
        thread = threading.Thread(target=lambda: seen.append(get().num_ps))
        thread.start()
        thread.join()
    assert seen == [0]
