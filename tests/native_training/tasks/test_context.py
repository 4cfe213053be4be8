import re

import pytest

from monolith.native_training.tasks import Context
from monolith.train.driver import drive


class Factory:
    def __init__(self):
        self.calls = []

    def create_feature_slot(self, config):
        return ("slot", config)

    def apply_gradients(self, grads_and_vars, scale=1):
        self.calls.append((grads_and_vars, scale))
        return "applied"


@pytest.mark.parametrize("kind", ["feature_factory", "layout_factory"])
def test_a_context_hands_on_to_its_factory(kind):
    context = Context(**{kind: (factory := Factory())})
    assert context.create_feature_slot("user") == ("slot", "user")
    assert context.apply_embedding_gradients([(1, 2)], scale=3) == "applied"
    assert factory.calls == [([(1, 2)], 3)]


def test_there_is_one_factory():
    text = "^Cannot set feature_factory and layout_factory in the same time$"
    with pytest.raises(ValueError, match=text):
        Context(feature_factory=Factory(), layout_factory=Factory())


def test_a_context_without_a_factory_says_so():
    text = (
        "[Context.create_feature_slot] expected a feature factory or a layout factory, got "
        "neither; a Trainer sets one"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        Context().create_feature_slot("user")


def test_functions_are_put_off_by_the_manager():
    context, called = Context(), []
    put, steps = context.add_async_function(lambda: called.append(len(called))), iter(range(2))

    def step():
        next(steps)
        put()
        return len(called)

    drive(step, context.hooks)
    assert called == [0, 1]
