"""Measure the longest turn of the event loop by operation, as processor time of its thread.

    PYTHONPATH=src:. python -m bench.turns                    every operation, over 100,000 objects
    PYTHONPATH=src:. python -m bench.turns --count 1000000 purge delete
    PYTHONPATH=src:. python -m bench.turns --deep --count 1000000
    PYTHONPATH=src:. python -m bench.turns --list

Build the compiled modules first: the bounds are for them, 2 ms for the operations on deep queues and many bindings
(`--deep`), and 20 ms for the others. Each operation runs on its own broker. The column "before" has the longest turn of the
preparation.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from bench import turns_amqp0, turns_amqp10, turns_links, turns_management  # noqa: F401  (they add their operations)
from bench.turn_lab import running
from bench.turn_operations import DEEP, OPERATIONS

BOUND = 20.0
DEEP_BOUND = 2.0


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
    parser.add_argument("--deep", action="store_true", help="measure the operations on deep queues and many bindings")
    parser.add_argument("--json", action="store_true", help="print one object per line")
    parser.add_argument("--list", action="store_true", help="print the names of the operations")
    chosen = parser.parse_args()
    if chosen.list:
        print("\n".join(OPERATIONS))
        return 0
    failed = False
    print(f"{'operation':<28} {'before':>9} {'longest':>9} ms", flush=True)
    for name in chosen.operations or [name for name in OPERATIONS if name in DEEP or not chosen.deep]:
        try:
            found = measure(name, chosen.count)
        except (OSError, RuntimeError) as error:
            print(f"{name:<28} failed: {error}", flush=True)
            failed = True
            continue
        bound = DEEP_BOUND if name in DEEP else BOUND
        longest = max(float(str(found["longest"])), float(str(found["before"])))
        failed = failed or longest > bound
        if chosen.json:
            print(json.dumps(found), flush=True)
        else:
            mark = "" if longest <= bound else "  above the bound"
            print(f"{name:<28} {found['before']:>9} {found['longest']:>9}{mark}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
