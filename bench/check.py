"""`make bench-check`: compare the processor time per message with the committed baseline, and fail if a load got slower.

    make bench-check                    a minute or two; up to four if a load seems slower, because it is measured again
    make bench-check ARGS=--renew       write a new baseline, to be committed with the change that explains it

The machine's speed cancels out. Each load's cost is divided by that of `bench.reference`, a small server in plain Python
that runs between the loads. `bench/baseline.json` has these ratios for each version of Python. The loads react to a busy
machine alike, but not exactly as the reference does; so the median of their changes is checked against the baseline as a
whole, and each load against that median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import brokers, generator, reference
from bench.workloads import WORKLOADS

BASELINE: Final = Path(__file__).with_name("baseline.json")
# Maximum increase over the baseline.
TOLERANCE: Final = 0.1
LOADS: Final = (
    "transient",
    "persistent",
    "unbatched",
    "single-acks",
    "fan-out",
    "topic",
    "amqp1-transient",
    "0-9-transient",
)
ROUNDS: Final = 5
# A load is slower if this many measurements in a row find it slower.
ATTEMPTS: Final = 3
LOAD_SECONDS: Final = 0.8
WARMUP: Final = 0.3
REFERENCE_SECONDS: Final = 0.3
ALL: Final = "all loads"
RENEW: Final = "make bench-check ARGS=--renew"

# By load: processor time per message, as a multiple of that of the reference.
Ratios = Mapping[str, float]


class NoBaseline(Exception):
    """The baseline has no ratios to compare with."""


@dataclass(frozen=True)
class Change:
    """A load compared with its baseline.

    Attributes:
        load: The name of the load.
        ratio: Its cost relative to the reference.
        expected: The same in the baseline.
        common: The median change of all loads; 1.0 for none.
    """

    load: str
    ratio: float
    expected: float
    common: float

    @property
    def own(self) -> float:
        """Return the change that the other loads do not share; 1.0 for none."""
        return self.ratio / self.expected / self.common


def baseline_ratios(path: Path, python: str) -> dict[str, float]:
    """Return the ratios of a version of Python.

    Raises:
        NoBaseline: the file has none.
    """
    ratios = json.loads(path.read_text()).get(python) if path.exists() else None
    if ratios is None:
        raise NoBaseline(f"'{path.name}' has no baseline for Python {python}; measure one with `{RENEW}`")
    return {str(load): float(ratio) for load, ratio in ratios.items()}


def write_baseline(path: Path, python: str, ratios: Ratios) -> None:
    """Replace the ratios of one version of Python."""
    known = json.loads(path.read_text()) if path.exists() else {}
    known[python] = {load: round(ratio, 4) for load, ratio in ratios.items()}
    path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def compare(ratios: Ratios, expected: Ratios) -> list[Change]:
    """Compare all loads.

    Raises:
        NoBaseline: a load has no baseline.
    """
    missing = [load for load in ratios if load not in expected]
    if missing:
        raise NoBaseline(f"the baseline has no ratio for {', '.join(missing)}; measure one with `{RENEW}`")
    common = statistics.median(ratio / expected[load] for load, ratio in ratios.items())
    return [Change(load, ratio, expected[load], common) for load, ratio in ratios.items()]


def complaints(changes: list[Change]) -> dict[str, str]:
    """Return a text for each load that is slower than the tolerance allows, and one if all of them are."""
    limit = 1 + TOLERANCE
    found = {
        change.load: f"{change.load}: {change.ratio:.3f} times the reference, {change.own - 1:.1%} above its baseline of"
        f" {change.expected:.3f} as measured by the other loads (at most {TOLERANCE:.0%})"
        for change in changes
        if change.own > limit
    }
    if changes and changes[0].common > limit:
        found[ALL] = (
            f"{ALL}: the median cost, relative to the reference, is {changes[0].common - 1:.1%} above the baseline"
            f" (at most {TOLERANCE:.0%})"
        )
    return found


def confirmed(earlier: Mapping[str, str], later: Mapping[str, str]) -> dict[str, str]:
    """Return the complaints of a measurement that an earlier one had, too."""
    return {load: text for load, text in later.items() if load in earlier}


def ratios_of(costs: Mapping[str, list[float]], references: list[float]) -> dict[str, float]:
    """Return the ratios of medians."""
    unit = statistics.median(references)
    return {load: statistics.median(values) / unit for load, values in costs.items()}


def measure(contender: brokers.Contender, costs: dict[str, list[float]], references: list[float], attempt: int) -> None:
    """Run all loads ROUNDS times. Add the costs in seconds of processor time, and those of the reference."""
    workloads = [workload for workload in WORKLOADS if workload.name in LOADS]
    span = ("--seconds", str(LOAD_SECONDS), "--warmup", str(WARMUP))
    for turn in range(ROUNDS):
        for workload in workloads:
            references.append(reference.measure(REFERENCE_SECONDS))
            names = ("--prefix", f"check-{workload.name}-{attempt}-{turn}")
            result = generator.run(contender.port, "run", *workload.options, *span, *names, watch=contender.pid)
            costs.setdefault(workload.name, []).append(result["broker_cpu"] / max(result[workload.counted], 1))
        print(f"round {turn + 1} of {ROUNDS}", flush=True)


def show(changes: list[Change]) -> None:
    print(f"{'load':20} {'ratio':>8} {'baseline':>9} {'change':>8} {'own':>8}")
    for change in changes:
        total = change.ratio / change.expected - 1
        print(f"{change.load:20} {change.ratio:8.3f} {change.expected:9.3f} {total:+8.1%} {change.own - 1:+8.1%}")


def check(contender: brokers.Contender, expected: Ratios) -> list[str]:
    """Return the complaints that all of ATTEMPTS measurements have. The first one without such complaints is the last."""
    found: dict[str, str] = {}
    for attempt in range(ATTEMPTS):
        costs: dict[str, list[float]] = {}
        references: list[float] = []
        measure(contender, costs, references, attempt)
        changes = compare(ratios_of(costs, references), expected)
        show(changes)
        found = confirmed(found, complaints(changes)) if attempt else complaints(changes)
        if not found:
            break
    return list(found.values())


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-check", description="Compare the cost of messages with the baseline.")
    parser.add_argument("--renew", action="store_true", help="write the baseline instead of comparing with it")
    parser.add_argument("--baseline", type=Path, default=BASELINE)
    return parser.parse_args()


def main() -> int:
    chosen = options()
    if brokers.COMPILED not in brokers.names():
        print("the compiled build is missing; run `make compiled`", file=sys.stderr)
        return 1
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        expected = {} if chosen.renew else baseline_ratios(chosen.baseline, python)
        with (
            tempfile.TemporaryDirectory(prefix="leveret-check-") as directory,
            brokers.running([brokers.COMPILED], Path(directory)) as contenders,
        ):
            if chosen.renew:
                costs: dict[str, list[float]] = {}
                references: list[float] = []
                measure(contenders[0], costs, references, 0)
                write_baseline(chosen.baseline, python, ratios_of(costs, references))
                print(f"wrote the ratios of Python {python} to {chosen.baseline}")
                return 0
            found = check(contenders[0], expected)
    except NoBaseline as error:
        print(error, file=sys.stderr)
        return 1
    for text in found:
        print(text, file=sys.stderr)
    if found:
        print(f"if the change is intended, renew the baseline with `{RENEW}` and commit it", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
