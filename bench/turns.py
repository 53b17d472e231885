"""Measure the longest turn of the event loop by operation, as processor time of its thread.

    PYTHONPATH=src:. python -m bench.turns                    every operation, over 100,000 objects
    PYTHONPATH=src:. python -m bench.turns --count 1000000 purge delete
    PYTHONPATH=src:. python -m bench.turns --list

Build the compiled modules first: the bound of 20 ms is for them. Each operation runs on its own broker. The column "before"
has the longest turn of the preparation.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from bench import turns_amqp0, turns_amqp10, turns_links, turns_management  # noqa: F401  (they add their operations)
from bench.turn_lab import running
from bench.turn_operations import OPERATIONS

BOUND = 20.0


def measure(name: str, count: int) -> dict[str, object]:
    with running() as lab:
        lab.settle()
        lab.reset()  # exclude the start
        act = OPERATIONS[name](lab, count)
        lab.settle()
        before = lab.longest()
        lab.reset()
        began = time.monotonic()
        act()
        lab.settle()
        return {
            "operation": name,
            "count": count,
            "before": round(before, 1),
            "longest": round(lab.longest(), 1),
            "seconds": round(time.monotonic() - began, 2),
            "build": lab.build,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operations", nargs="*", help="operations to measure; all by default")
    parser.add_argument("--count", type=int, default=100_000, help="messages, bindings, ... per operation")
    parser.add_argument("--json", action="store_true", help="print one object per line")
    parser.add_argument("--list", action="store_true", help="print the names of the operations")
    chosen = parser.parse_args()
    if chosen.list:
        print("\n".join(OPERATIONS))
        return 0
    worst = 0.0
    print(f"{'operation':<28} {'before':>9} {'longest':>9} ms", flush=True)
    for name in chosen.operations or OPERATIONS:
        try:
            found = measure(name, chosen.count)
        except (OSError, RuntimeError) as error:
            print(f"{name:<28} failed: {error}", flush=True)
            worst = max(worst, BOUND + 1)
            continue
        longest = max(float(str(found["longest"])), float(str(found["before"])))
        worst = max(worst, longest)
        if chosen.json:
            print(json.dumps(found), flush=True)
        else:
            mark = "" if longest <= BOUND else "  above the bound"
            print(f"{name:<28} {found['before']:>9} {found['longest']:>9}{mark}", flush=True)
    return 0 if worst <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
