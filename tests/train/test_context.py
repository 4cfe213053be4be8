import re

import pytest
import torch

from monolith.train import Context, Trainer
from tests.train.tasks import Clicks, Counting


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


def test_slots_of_a_trainer_are_features_of_its_task():
    text = (
        "[Context.create_feature_slot] expected slots declared as features of the task, got 'user' "
        "(task 'Clicks'); use Task.features"
    )
    with Trainer(Clicks()) as trainer, pytest.raises(ValueError, match=re.escape(text)):
        trainer.context.create_feature_slot("user")


def test_functions_that_are_put_off_run_with_the_next_step():
    seen = []

    class Put(Counting):
        def build(self):
            number = lambda: torch.tensor(len(self.seen))  # noqa: E731
            target = lambda step: seen.append((int(step), len(self.seen)))  # noqa: E731
            self.put = self.context.add_async_function(target, [number])
            return super().build()

        def loss(self, model, inputs, batch):
            found = super().loss(model, inputs, batch)
            self.put()
            return found

    with Trainer(Put(3)) as trainer:
        trainer.fit()
    assert seen == [(1, 1), (2, 2), (3, 3)]  # each before the next step, the last at the end
