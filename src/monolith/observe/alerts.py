"""Alerts: rules such as `loss>1.5` over the figures of a run."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from monolith.observe.metrics import MetricsSink

ALERTS = "run/alerts"
"""Counter of the alerts of a run, by rule."""

_RULE = re.compile(r"\s*([A-Za-z_]\w*)\s*([<>])\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")

_log = logging.getLogger(__name__)


class AlertRule(NamedTuple):
    """A figure and the limit beyond which it is an alert.

    Attributes:
        figure: Name of the figure.
        is_above: Whether values above the limit are alerts; otherwise those below.
        limit: The limit.

    Example:
        >>> rule = AlertRule.of("auc < 0.6")
        >>> rule.fires(0.55), rule.fires(0.6), str(rule)
        (True, False, 'auc<0.6')
    """

    figure: str
    is_above: bool
    limit: float

    @classmethod
    def of(cls, text: str) -> "AlertRule":
        """Return the rule that a text describes.

        Raises:
            ValueError: The text is no rule.
        """
        match = _RULE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(
                f"[AlertRule] expected FIGURE>NUMBER or FIGURE<NUMBER, got {text!r}; for example "
                "loss>1.5"
            )
        return cls(match[1], match[2] == ">", float(match[3]))

    def fires(self, value: float) -> bool:
        """Whether a value is beyond the limit; NaN never is."""
        return value > self.limit if self.is_above else value < self.limit

    def __str__(self) -> str:
        return f"{self.figure}{'>' if self.is_above else '<'}{self.limit:g}"


def alert_rules(texts: Iterable[str], known: Sequence[str]) -> list[AlertRule]:
    """Return the rules of some texts.

    Args:
        texts: The rules as text.
        known: Names of the figures.

    Raises:
        ValueError: A text is no rule, or there is no such figure.
    """
    rules = [AlertRule.of(text) for text in texts]
    for rule in rules:
        if rule.figure not in known:
            raise ValueError(
                f"[AlertRule] expected a figure of {', '.join(known)}, got {rule.figure!r} (rule "
                f"{str(rule)!r})"
            )
    return rules


class Alerts:
    """Tells a log and a sink when figures pass their limits, once until they have come back.

    Args:
        rules: The rules.
        sink: Gets a count and an event for each alert, and an event when it is over.

    Example:
        >>> from monolith.observe.metrics import MemorySink
        >>> sink = MemorySink()
        >>> alerts = Alerts([AlertRule.of("loss>1.5")], sink)
        >>> for step, loss in enumerate([1.0, 2.0, 3.0, 1.2, 2.0]):
        ...     alerts.check(step, {"loss": loss})
        >>> sink.total("run/alerts", {"rule": "loss>1.5"})
        2.0
    """

    def __init__(self, rules: Sequence[AlertRule], sink: MetricsSink) -> None:
        self._rules, self._sink = rules, sink
        self._firing: set[AlertRule] = set()
        for rule in rules:  # readers see the counter before the first alert
            sink.count(ALERTS, 0, {"rule": str(rule)})

    def check(self, step: int, figures: Mapping[str, float]) -> None:
        """Look at the figures after a step; a figure that is missing changes nothing."""
        for rule in self._rules:
            if rule.figure not in figures:
                continue
            value = figures[rule.figure]
            fields = {"step": step, "rule": str(rule), "value": value}
            if rule.fires(value) and rule not in self._firing:
                self._firing.add(rule)
                _log.warning("alert %s: %s is %g at step %d", rule, rule.figure, value, step)
                self._sink.count(ALERTS, 1, {"rule": str(rule)})
                self._sink.event("alert", fields)
            elif not rule.fires(value) and rule in self._firing:
                self._firing.discard(rule)
                _log.warning(
                    "alert %s is over: %s is %g at step %d", rule, rule.figure, value, step
                )
                self._sink.event("alert_over", fields)
