import torch

from monolith.observe import TensorSummaries


def test_the_last_tensor_of_a_tag_counts():
    summaries = TensorSummaries()
    for value in (1.0, 2.0):
        summaries.put("a", torch.tensor([value]), b"meta")
    summaries.put("b", torch.tensor([3.0]), b"")
    assert [(s.tag, s.tensor.item(), s.metadata) for s in summaries.take()] == [
        ("a", 2.0, b"meta"),
        ("b", 3.0, b""),
    ]
    assert summaries.take() == ()


def test_a_tensor_is_copied_without_its_graph():
    weight = torch.ones(2, requires_grad=True)
    summaries = TensorSummaries()
    summary = summaries.put("a", weight * 1, b"")
    later = summaries.put("weight", weight, b"")
    with torch.no_grad():
        weight.add_(5)
    assert not summary.tensor.requires_grad
    assert later.tensor.tolist() == [1, 1]
