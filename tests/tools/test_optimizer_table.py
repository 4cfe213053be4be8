from monolith.table.optimizers import GroupAdagrad
from tests.suites.optimizer_cases import CLASSES
from tools import optimizer_table


def test_the_page_shows_the_table_of_the_code():
    shown = optimizer_table.PAGE.read_text()
    assert optimizer_table.table() in shown, "run python -m tools.optimizer_table"


def test_every_optimizer_has_a_line():
    assert optimizer_table.optimizer_classes() == CLASSES


def test_a_line_holds_state_formula_and_options():
    assert optimizer_table.state(GroupAdagrad) == "4: `grad_square_sum`"
    assert optimizer_table.update(GroupAdagrad).startswith("`h = g + weight_decay_factor * w`<br>")
    assert "\\|y\\|" in optimizer_table.update(GroupAdagrad)
    assert optimizer_table.options(GroupAdagrad).endswith(
        "`weight_decay_factor=0.0`, `warmup_steps=0`"
    )
