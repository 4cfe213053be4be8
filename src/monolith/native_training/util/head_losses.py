"""Compute loss and prediction of a head from its logits."""

import math

import torch
import torch.nn.functional as F  # noqa: N812

from monolith.train.task import Mode


def get_sigmoid_loss_and_pred(
    name: str,
    logits: torch.Tensor,
    label: torch.Tensor | None,
    batch_size: int | None = None,
    sample_rate: torch.Tensor | float | None = 1.0,
    sample_bias: bool | float = False,
    mode: Mode | str = Mode.TRAIN,
    instance_weight: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    logit_clip_threshold: float | None = None,
    predict_before_correction: bool = True,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the sum of binary cross-entropies, and the probabilities.

    Negative samples that were kept at a rate make probabilities too large; the loss is that of
    logits which are corrected by the rate.

    Args:
        name: Name of the head, for errors.
        logits: A logit of each sample.
        label: 0 or 1 of each sample; None in prediction.
        batch_size: Not used: a last batch may be smaller, so the number of logits counts.
        sample_rate: Rate at which samples were kept, one or one of each sample; None is 1.
        sample_bias: Whether the logit is that of a sample among all, before any was dropped.
        mode: With "predict" there is no loss and no correction.
        instance_weight: Weight of each sample.
        mask: Which samples count.
        logit_clip_threshold: Least probability `t`; corrected logits stay within +-ln((1-t)/t).
        predict_before_correction: Whether probabilities are of logits as they are.

    Raises:
        ValueError: The threshold is not between 0 and 1, or there is no label.

    Example:
        >>> loss, pred = get_sigmoid_loss_and_pred("ctr", torch.zeros(2), torch.tensor([1.0, 0.0]))
        >>> loss, pred
        (tensor(1.3863), tensor([0.5000, 0.5000]))
    """
    where = f"[get_sigmoid_loss_and_pred] expected {{}} (head {name!r})"
    logits = logits.reshape(-1)
    if mode == Mode.PREDICT:
        return None, logits.sigmoid()
    if label is None:
        raise ValueError(where.format("a label, got None"))
    rate = torch.as_tensor(1.0 if sample_rate is None else sample_rate, dtype=logits.dtype)
    corrected = (F.logsigmoid(logits) if sample_bias else logits) - rate.reshape(-1).log()
    pred = (logits if predict_before_correction else corrected).sigmoid()
    if logit_clip_threshold is not None:
        if not 0 < logit_clip_threshold < 1:
            raise ValueError(
                where.format(f"0 < logit_clip_threshold < 1, got {logit_clip_threshold}")
            )
        bound = math.log((1 - logit_clip_threshold) / logit_clip_threshold)
        corrected = corrected.clamp(min(-bound, bound), max(-bound, bound))
    losses = F.binary_cross_entropy_with_logits(
        corrected, label.reshape(-1).to(corrected.dtype), reduction="none"
    )
    weight = None if instance_weight is None else instance_weight.reshape(-1)
    if mask is not None:
        kept = mask.reshape(-1).bool()
        losses, weight = losses[kept], None if weight is None else weight[kept]
    return (losses if weight is None else losses * weight).sum(), pred


def get_softmax_loss_and_pred(
    name: str, logits: torch.Tensor, label: torch.Tensor | None, mode: Mode | str = Mode.TRAIN
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Return the cross-entropy of each sample, not reduced, and the most likely classes.

    Args:
        name: Name of the head, for errors.
        logits: (batch, classes).
        label: A distribution over the classes of each sample, (batch, classes), or classes,
            (batch,); None in prediction.
        mode: With "predict" there is no loss.

    Raises:
        ValueError: There is no label.

    Example:
        >>> get_softmax_loss_and_pred("rank", torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        (tensor([0.6931]), tensor([0]))
    """
    pred = logits.argmax(1)
    if mode == Mode.PREDICT:
        return None, pred
    if label is None:
        raise ValueError(f"[get_softmax_loss_and_pred] expected a label, got None (head {name!r})")
    label = label.long() if label.dim() == 1 else label.to(logits.dtype)
    return F.cross_entropy(logits, label, reduction="none"), pred
