from monolith import train
from monolith.native_training import cpu_training


def test_the_name_of_the_reference_system_is_ours():
    assert cpu_training.local_train is train.local_train
