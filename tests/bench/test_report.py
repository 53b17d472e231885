"""The tables of the benchmark, over synthetic results."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from bench import report
from bench.workloads import WORKLOADS, Workload


def workload(name: str) -> Workload:
    return next(workload for workload in WORKLOADS if workload.name == name)


LATENCY = workload("latency")


def result(p99: float) -> dict[str, Any]:
    return {
        "delivered": 2000,
        "seconds": 1.0,
        "broker_cpu": 0.1,
        "broker_rss_kb": 1024,
        "generator_cpu": 0.01,
        "latency_us": {"p50": p99 / 4, "p99": p99},
    }


def floor(p50: float, p99: float) -> report.Floor:
    return {"messages": 2000, "latency_us": {"p50": p50, "p99": p99}}


def test_the_caption_names_the_machine() -> None:
    said = report.caption([floor(50, 500), floor(40, 200), floor(60, 300)])
    assert "p50 0.05 ms, p99 0.30 ms (0.20 to 0.50 in 3 measurements)" in said


def test_the_caption_is_below_the_tables() -> None:
    rows = report.rows([LATENCY], {"latency": {"rabbitmq": [result(1000.0)], "compiled": [result(400.0)]}})
    said = report.caption([floor(50, 300)])
    printed = io.StringIO()
    report.print_table(rows, said, Console(width=150, file=printed))
    assert said in " ".join(printed.getvalue().split())
    lines = report.markdown(rows, said).splitlines()
    assert lines[-1] == said and lines[-2] == "" and lines[-3].startswith("| p99 at 2,000")


def test_there_is_no_latency_table_without_latency_loads() -> None:
    assert report.caption([]) == ""
    assert report.markdown([], "").endswith("|\n")


def test_the_same_load_is_compared_with_other_brokers_and_other_loads() -> None:
    ours, own = workload("amqp1-transient"), workload("transient")
    fast, slow = result(1.0), {**result(1.0), "seconds": 4.0}
    results = {
        "transient": {"compiled": [fast], "pure": [fast]},
        "amqp1-transient": {"artemis": [slow], "compiled": [fast], "pure": [slow]},
    }
    rows = {(row.workload.name, row.broker): row for row in report.rows([own, ours], results)}
    assert [(other.title, ratio) for other, ratio in rows["amqp1-transient", "compiled"].beside] == [
        ("0-9-1", 1.0),
        ("Artemis", 4.0),
    ]
    assert rows["transient", "compiled"].beside == rows["amqp1-transient", "artemis"].beside == ()
    lines = report.markdown(list(rows.values()), "").splitlines()
    assert [line for line in lines if line.endswith("(missed) |")] == [line for line in lines if "0.25 x 0-9-1" in line]
    assert "0.25 x 0-9-1 (>= 0.5), 1.00 x Artemis (>= 1.5) (missed)" in lines[-1]
    assert report.chart(list(rows.values())).endswith("</svg>\n")


def test_brokers_of_one_protocol_get_its_loads_only() -> None:
    assert [one.name for one in WORKLOADS if one.only_amqp10] == [
        "large-amqp1",
        "amqp1-transient",
        "amqp1-persistent",
        "amqp1-properties",
    ]
