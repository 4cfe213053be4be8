from monolith.data.str_queue import StrQueue
from monolith.native_training.distribute import str_queue


def test_the_import_path_has_the_class():
    assert str_queue.StrQueue is StrQueue
