import pytest
import torch

from monolith.errors import AbortedError
from monolith.native_training.tasks.step_functions import StepFunctions
from monolith.train import Trainer, TrainSettings
from monolith.train.driver import drive
from tests.native_training.tasks.native_tasks import Score, columns, made, weights
from tests.train.test_recovery import Batches, wrap


def collected(model, **options):
    functions = StepFunctions(**options)
    functions.begin_call(is_first=True)
    model(functions, 0)
    return functions


def run(functions, model, number):
    numbers = iter(range(1, number + 1))

    def step():
        functions.begin_call()
        model(functions, next(numbers))

    drive(step, functions.hooks, overlap=False)


def test_calls_are_made_a_step_later_with_the_arguments_of_their_step():
    events = []

    def model(functions, number):
        events.append(f"step {number}")
        action = functions.add_async_function(
            lambda x, *, y: events.append((x.item(), y)), [torch.tensor(number)], {"y": number}
        )
        action()

    functions = collected(model)
    run(functions, model, 2)
    assert events == ["step 0", "step 1", (1, 1), "step 2", (2, 2)]


def test_arguments_that_are_callables_are_called_when_the_call_is_entered():
    pushed = []

    def model(functions, number):
        args, named = [lambda: torch.tensor(number)], {"y": lambda: number}
        functions.add_async_function(lambda x, y: pushed.append(x.item() + y), args, named)()

    run(collected(model), model, 2)
    assert pushed == [2, 4]


@pytest.mark.parametrize("options", [{"is_async": False}, {}])
def test_a_function_that_is_not_put_off_is_called_at_once_but_not_when_collected(options):
    pushed = []

    def model(functions, number):
        functions.add_async_function(pushed.append, [number], is_async=False)

    functions = collected(model, **options)
    assert (pushed, functions.hooks) == ([], [])
    functions.begin_call()
    model(functions, 7)
    assert pushed == [7]


def test_collecting_again_forgets_what_was_collected():
    def model(functions, number):
        functions.add_async_function(print, [number])

    functions = collected(model)
    functions.begin_call(is_first=True)
    model(functions, 0)
    assert len(functions.hooks) == 1


def test_a_function_that_was_not_collected_is_refused():
    functions = collected(lambda functions, number: None)
    functions.begin_call()
    with pytest.raises(ValueError, match=r"expected 0 functions .* got one more \(queue 'q'\)"):
        functions.add_async_function(print, queue_name="q")


@pytest.mark.parametrize("push", [0, 1])
def test_a_step_that_is_trained_once_more_puts_its_function_off_once(push):
    class Deferring(Score):
        def lookup(self):
            self.ctx.add_async_function(pushed.append, [len(self.calls)])()
            column, score = super().lookup()
            if len(self.calls) == 2 and failures:
                raise failures.pop()
            return column, score

    pushed, failures = [], [AbortedError("gone")]
    trainer = Trainer(made(Deferring), TrainSettings(push=push))
    assert trainer.fit().num_recoveries == 1
    assert pushed == [3, 4]
    assert weights(trainer) == [-2.0, -4.0]


def test_a_step_that_a_restore_has_undone_puts_its_function_off_once(tmp_path):
    class Deferring(Score):
        def lookup(self):
            self.ctx.add_async_function(pushed.append, [len(self.calls)])()
            return super().lookup()

    def tear():
        if trainer.run.global_step >= 3 and failures:
            raise failures.pop()

    pushed, failures = [], [AbortedError("gone")]
    settings = TrainSettings(checkpoint_dir=str(tmp_path), save_every=1, background_saves=False)
    with Trainer(made(Deferring, batches=Batches([columns()] * 5)), settings) as trainer:
        wrap(trainer.features.pending.engine, "step", None, tear)
        assert trainer.fit().num_recoveries == 1
    assert pushed == [2, 3, 4, 6, 7]  # the fifth call of the function is that of the undone step
