"""The suite of tables for tables in several shards, and its tests of budgets for one shard."""

from tests.suites.table import TableSuite

# Exact numbers of rows under a budget of a few kilobytes, of which each shard has a part, and 4,096
# bytes of its own.
OF_ONE_BUDGET = (
    "test_bound_holds_after_every_call",
    "test_call_with_more_new_keys_than_fit_refuses_the_rest",
    "test_erased_rows_make_room",
    "test_every_inserting_verb_keeps_the_bound",
    "test_import_keeps_the_bound",
    "test_keys_that_the_budget_refuses_are_not_touched",
    "test_rows_that_go_for_the_budget_leave_tombstones",
)


class ShardedSuite(TableSuite):
    pass


class OneBudgetSuite(TableSuite):
    pass


# An attribute that is None takes a test of the base class out.
for _name in (name for name in dir(TableSuite) if name.startswith("test_")):
    setattr(ShardedSuite if _name in OF_ONE_BUDGET else OneBudgetSuite, _name, None)
