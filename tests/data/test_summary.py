import pyarrow as pa

from monolith.data.summary import ColumnSummary


def test_numbers_that_are_nan_count_as_values_and_for_nothing_else():
    summary = ColumnSummary("d", "float")
    for block in ([float("nan")], [1.0, float("nan"), 3.0]):
        summary.add(pa.array(block, pa.float32()))
    told = summary.as_dict(0)
    assert [told[name] for name in ("values", "min", "max", "mean")] == [4, 1.0, 3.0, 2.0]
