from monolith.native_training.distribute.distributed_dataset import create_dynamic_sharding_dataset


def test_ten_names_of_five_patterns(tmp_path):
    names = [f"{letter}_{i}" for letter in "abcde" for i in (0, 1)]
    for name in names:
        (tmp_path / name).write_text("")
    dataset = create_dynamic_sharding_dataset([f"{tmp_path}/{letter}_*" for letter in "abcde"])
    assert list(dataset) == [f"{tmp_path}/{name}" for name in names]


def test_no_patterns_are_the_end():
    assert list(create_dynamic_sharding_dataset([], name="files")) == []
