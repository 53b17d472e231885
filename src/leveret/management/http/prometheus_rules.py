"""Rules of alerts as a file for Prometheus, which evaluates them on the metrics of each queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from leveret.management.http.alerts import Kind, Rule

_HEAD: Final = """\
# Rules of alerts of Leveret. Prometheus must scrape /metrics, and for the rules about queues /metrics/detailed with the
# families queue_coarse_metrics, queue_consumer_count, queue_delivery_metrics and queue_metrics.
groups:
  - name: leveret-console
"""
_MESSAGES: Final = "rabbitmq_detailed_queue_messages"
_CONSUMERS: Final = "rabbitmq_detailed_queue_consumers"
_UNACKED: Final = "rabbitmq_detailed_queue_messages_unacked"
_OLDEST: Final[Mapping[Kind, str]] = {
    "ready_age": "leveret_queue_oldest_ready_seconds",
    "unacked_age": "leveret_queue_oldest_unacked_seconds",
}
_ACKED: Final = "rabbitmq_detailed_queue_messages_acked_total"
_SUMMARIES: Final[Mapping[Kind, str]] = {
    "depth": "{{ $labels.queue }} in vhost {{ $labels.vhost }} has {{ $value }} messages",
    "growth": "{{ $labels.queue }} in vhost {{ $labels.vhost }} grows by {{ $value }} messages per second",
    "no_consumers": "{{ $labels.queue }} in vhost {{ $labels.vhost }} has {{ $value }} messages and no consumer",
    "no_acks": "{{ $labels.queue }} in vhost {{ $labels.vhost }} has {{ $value }} unacked messages, and no acknowledgement",
    "ready_age": "the oldest ready message of {{ $labels.queue }} in vhost {{ $labels.vhost }} is {{ $value }} s old",
    "unacked_age": "the oldest unacked message of {{ $labels.queue }} in vhost {{ $labels.vhost }} is {{ $value }} s old",
    "memory": "{{ $labels.instance }}: the memory alarm blocks publishers",
    "disk": "{{ $labels.instance }}: the disk alarm blocks publishers",
}


def describe(rules: Mapping[str, Rule]) -> str:
    """Return rules as a file for Prometheus in YAML."""
    if not rules:
        return f"{_HEAD}    rules: []\n"
    return f"{_HEAD}    rules:\n" + "".join(_describe(name, rule) for name, rule in sorted(rules.items()))


def _describe(name: str, rule: Rule) -> str:
    lines = [f"      - alert: {_quoted(name)}", f"        expr: {_quoted(_expression(rule))}"]
    if rule.seconds:
        lines.append(f"        for: {rule.seconds}s")
    lines += ["        labels: {severity: warning}", "        annotations:"]
    lines.append(f"          summary: {_quoted(_SUMMARIES[rule.kind])}")
    return "\n".join(lines) + "\n"


def _expression(rule: Rule) -> str:
    """Return the expression of a rule in PromQL."""
    queues, threshold = _selector(rule), rule.threshold
    if rule.kind == "memory":
        return "rabbitmq_alarms_memory_used_watermark == 1"
    if rule.kind == "disk":
        return "rabbitmq_alarms_free_disk_space_watermark == 1"
    if rule.kind == "depth":
        return f"{_MESSAGES}{queues} > {threshold}"
    if rule.kind in _OLDEST:
        return f"{_OLDEST[rule.kind]}{queues} > {threshold}"
    if rule.kind == "growth":
        return f"deriv({_MESSAGES}{queues}[1m]) > {threshold}"
    if rule.kind == "no_consumers":
        return f"{_MESSAGES}{queues} > {threshold} and {_CONSUMERS}{queues} == 0"
    return f"{_UNACKED}{queues} > 0 and increase({_ACKED}{queues}[{max(int(rule.threshold), 60)}s]) == 0"


def _selector(rule: Rule) -> str:
    matchers = []
    if rule.vhost is not None:
        matchers.append(f"vhost={_quoted(rule.vhost)}")
    if rule.pattern:
        # Prometheus matches whole values.
        matchers.append(f"queue=~{_quoted(f'.*(?:{rule.pattern}).*')}")
    return f"{{{','.join(matchers)}}}" if matchers else ""


def _quoted(text: str) -> str:
    """Return a text in double quotes, as YAML and PromQL read it."""
    return msgspec.json.encode(text).decode()
