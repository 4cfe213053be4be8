"""The reference's datasets: topics of Kafka, and streams that are split and merged."""

from collections.abc import Sequence

from monolith.data.pipeline import Pipeline
from monolith.native_training.data.kafka_dataset import KafkaDataset as KafkaDataset


def split_flow(
    dataset: Pipeline,
    data_flow: Sequence[str],
    index: int,
    max_queue_size: int = 1024,
    variant_type: str = "example",
) -> Pipeline:
    """Return one flow of a pipeline whose samples have the key of a data source.

    `Pipeline.split` explains flows. A sample of no flow is an error.

    Args:
        dataset: pipeline with the id column `data_source_key`.
        data_flow: names of all data sources.
        index: number of the flow in `data_flow`.
        max_queue_size: number of samples that may wait for the reader of a flow.
        variant_type: kind of the records; changes nothing, because samples travel as columns.

    Raises:
        IndexError: there is no such flow.
        ValueError: the pipeline has no column `data_source_key`, or names are equal.

    Example:
        >>> from monolith import data
        >>> keys = [914176, 1250992640, 914176]
        >>> source = data.arrow_table({"user": [7, 8, 9], "data_source_key": keys})
        >>> pc, mobile = (split_flow(source, ["pc", "mobile"], index) for index in range(2))
        >>> next(iter(merge_flow(mobile, [pc]).batch(9))).features["user"].to_lists()
        [[8], [7], [9]]
    """
    flows = dataset.split("data_source_key", data_flow, max_waiting=max_queue_size)
    return flows[data_flow[index]]


def merge_flow(
    dataset: Pipeline,
    dataset_to_merge: Sequence[Pipeline],
    max_queue_size: int = 1024,
    variant_type: str = "example",
) -> Pipeline:
    """Return the samples of several pipelines, one of each in turns; see `Pipeline.merge`.

    Args:
        dataset: first pipeline.
        dataset_to_merge: other pipelines.
        max_queue_size: changes nothing, because a merge reads what it needs.
        variant_type: kind of the records; changes nothing, as in `split_flow`.
    """
    return dataset.merge(*dataset_to_merge)
