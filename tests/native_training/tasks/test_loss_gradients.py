import torch

from monolith.native_training.tasks.loss_gradients import with_gradients


def test_backward_brings_the_given_gradients_alone():
    weight = torch.tensor([2.0, 3.0], requires_grad=True)
    loss = with_gradients(weight.square().sum(), [(torch.tensor([5.0, 7.0]), weight)])
    loss.backward()
    assert (loss.item(), weight.grad.tolist()) == (13.0, [5.0, 7.0])


def test_a_factor_of_the_loss_is_one_of_the_gradients():
    weight = torch.ones(1, requires_grad=True)
    (4 * with_gradients(torch.tensor(1.0), [(torch.ones(1), weight)])).backward()
    assert weight.grad.tolist() == [4.0]


def test_a_tensor_in_the_middle_of_a_graph_passes_its_gradient_on():
    weight = torch.ones(1, requires_grad=True)
    with_gradients(torch.tensor(1.0), [(torch.ones(1), 3 * weight)]).backward()
    assert weight.grad.tolist() == [3.0]


def test_a_loss_without_gradients_has_a_backward():
    loss = with_gradients(torch.tensor(1.0), [])
    loss.backward()
    assert loss.item() == 1.0
