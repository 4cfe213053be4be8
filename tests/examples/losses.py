"""The losses of a training."""

import monolith as ml


class _Losses(ml.train.Hook):
    def __init__(self):
        self.values = []

    def after_run(self, ctx, results):
        self.values.append(float(results.value.loss))


def losses_of(trainer):
    """Of each step, until the data ends."""
    hook = _Losses()
    trainer.fit(hooks=[hook])
    return hook.values
