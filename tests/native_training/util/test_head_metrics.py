import pytest
import torch

from monolith.native_training.util.head_metrics import HeadMetric


@pytest.mark.parametrize(("predictions", "labels"), [((3, 4), (3, 2)), ((3, 2), (3, 2, 2))])
def test_several_numbers_of_a_head_are_refused(predictions, labels):
    metric = HeadMetric((1, 2), (0, 2), is_classification=False)
    text = r"expected one number of each head \(2 heads\), got .* of shape \(3, "
    with pytest.raises(ValueError, match=text):
        metric.update(torch.zeros(predictions), torch.zeros(labels))
