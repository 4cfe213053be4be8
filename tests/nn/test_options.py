import pytest
import torch

from monolith.nn import Embedding, EmbeddingBag
from monolith.nn.options import DEFAULT_NAME, REFUSED_ARGUMENTS, REFUSED_ATTRIBUTES
from monolith.table import Budget, Expiry, MinCount, Segment, Table, TableConfig, Uniform
from monolith.table.optimizers import SGD, Adagrad

CONFIG = TableConfig("user", Segment(4))


def test_options_reach_the_table():
    retention = {"admission": MinCount(2), "expiry": Expiry(5), "budget": Budget(1 << 20)}
    made = EmbeddingBag(
        8,
        name="user",
        seed=5,
        optimizer=Adagrad(0.1),
        initializer=Uniform(-1, 1),
        precision="bf16",
        non_finite="clip",
        clip_value=3.0,
        clock=lambda: 77,
        changes_bytes=123,
        **retention,
    )
    segment = Segment(8, Adagrad(0.1), Uniform(-1, 1), precision="bf16")
    policy = {"non_finite": "clip", "clip_value": 3.0}
    assert made.table.config == TableConfig("user", segment, seed=5, **policy, **retention)
    made.table.reinitialize(torch.tensor([1]))
    assert made.table.lookup_entry(torch.tensor([1])).rows.times.tolist() == [77]


def test_the_seed_comes_from_the_generator_of_torch_unless_named():
    torch.manual_seed(3)
    first, second = Embedding(4).table.config, Embedding(4).table.config
    torch.manual_seed(3)
    assert Embedding(4).table.config == first
    assert first.seed != second.seed
    assert first.name == DEFAULT_NAME


def test_a_name_gives_the_seed_of_the_name():
    assert Embedding(4, name="user").table.config.seed == CONFIG.seed


def test_a_config_makes_a_table_of_several_segments():
    config = TableConfig("user", [Segment(3, SGD(0.1)), Segment(1, Adagrad(0.2))])
    assert EmbeddingBag(4, config=config).table.config is config


def test_modules_of_one_table_share_its_queue():
    table = Table(CONFIG)
    bag, embedding = EmbeddingBag(4, table=table), Embedding(4, table=table)
    assert bag.queue is embedding.queue
    assert bag.anchor is embedding.anchor


@pytest.mark.parametrize("name", sorted(REFUSED_ARGUMENTS))
@pytest.mark.parametrize("cls", [Embedding, EmbeddingBag])
def test_an_argument_of_torch_is_refused_with_the_way_out(cls, name):
    with pytest.raises(TypeError) as caught:
        cls(4, **{name: 1})
    way_out = REFUSED_ARGUMENTS[name]
    assert str(caught.value) == f"[{cls.__name__}] has no argument {name}: {way_out}"


@pytest.mark.parametrize("name", sorted(REFUSED_ATTRIBUTES))
def test_an_attribute_of_torch_is_refused_with_the_way_out(name):
    with pytest.raises(AttributeError) as caught:
        getattr(EmbeddingBag(4), name)
    assert str(caught.value) == f"[EmbeddingBag] has no {name}: {REFUSED_ATTRIBUTES[name]}"
    assert not hasattr(EmbeddingBag(4), name)


def test_every_argument_of_the_torch_classes_is_taken_or_refused():
    taken = {"self", "mode", "include_last_offset", "padding_idx"}
    for cls in (torch.nn.Embedding, torch.nn.EmbeddingBag):
        names = set(cls.__init__.__code__.co_varnames[: cls.__init__.__code__.co_argcount])
        assert names - taken <= set(REFUSED_ARGUMENTS)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((1000, 16), {}, TypeError, r"dim alone by position, got \(1000, 16\).*EmbeddingBag\(16\)"),
        ((4,), {"optimiser": 1}, TypeError, "has no argument optimiser; options .* optimizer"),
        (("4",), {}, TypeError, "expected dim as an integer, got '4'"),
        ((4,), {"padding_idx": 0.5}, TypeError, "expected padding_idx as an integer, got 0.5"),
        ((4,), {"missing": "nan"}, ValueError, "expected missing 'initial' or 'zeros', got 'nan'"),
        ((4,), {"table": 3}, TypeError, "expected table as a Table, got 3"),
        ((5,), {"config": CONFIG}, ValueError, r"dim 4 of the table, got 5 \(table 'user'\)"),
        ((4,), {"config": CONFIG, "name": "x"}, ValueError, "config alone, got .* name"),
        ((4,), {"config": CONFIG, "table": Table(CONFIG)}, ValueError, "table alone, .* config"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(arguments, options, error, text):
    with pytest.raises(error, match=text):
        EmbeddingBag(*arguments, **options)
