from monolith.native_training import cpu_training, tasks


def test_the_name_of_the_reference_system_is_ours():
    assert cpu_training.local_train is tasks.local_train
