from monolith.native_training.learning_rate_functions import LearningRateFunction, PolynomialDecay


def test_functions_print_their_options_by_name():
    function = PolynomialDecay(0.01, 10, end_learning_rate=0.11)
    assert isinstance(function, LearningRateFunction)
    assert str(function) == (
        'LearningRateFunction("PolynomialDecay",Params:cycle=False,decay_steps=10,'
        "end_learning_rate=0.11,initial_learning_rate=0.01,name=None,power=1.0)"
    )
