"""Write the types of known arguments and policy keys for the forms of the web console.

python tools/document_arguments.py src/leveret/management/console/app/arguments.js
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from leveret.broker.arguments import ANYTHING, EXCHANGE_ARGUMENTS, FLAG, MAX_INT64, WHOLE, Argument
from leveret.broker.exchanges.registry import TYPES as EXCHANGE_TYPES
from leveret.broker.policies import KEYS
from leveret.broker.queues.registry import QUEUE_ARGUMENTS
from leveret.broker.queues.registry import TYPES as QUEUE_TYPES

HEADER = """\
// The known arguments and policy keys, by tools/document_arguments.py from the broker's declarations.
//
// `type` is "number", "flag" or "text"; `expected` describes the values. A queue argument with `types` is for these types.

"""
# Arguments that the broker accepts for compatibility, without effect: those of policy keys without a setting, and these.
WITHOUT_EFFECT = {f"x-{key.name}" for key in KEYS.values() if not key.setting} | {
    "x-queue-type",
    "x-cache-persistence",
    "x-quorum-initial-group-size",
    "x-quorum-target-group-size",
}


def described(argument: Argument) -> dict[str, Any]:
    """Return what a field for an argument needs."""
    found: dict[str, Any] = {
        "name": argument.name,
        "type": {WHOLE: "number", FLAG: "flag"}.get(argument.kind, "text"),
        "expected": argument.unit or argument.expected(),
    }
    if argument.kind == WHOLE:
        found["min"] = argument.lowest
        if argument.highest != MAX_INT64:
            found["max"] = argument.highest
    if argument.choices:
        found["choices"] = list(argument.choices)
    return found


def described_all(arguments: Iterable[Argument]) -> list[dict[str, Any]]:
    return [described(argument) for argument in arguments if argument.kind != ANYTHING]


def queue_arguments() -> list[dict[str, Any]]:
    """Return the arguments of queues, each with the types that have it unless all have."""
    own = {argument.name: name for name, kind in QUEUE_TYPES.items() for argument in kind.own}
    found = []
    for item in described_all(argument for name, argument in QUEUE_ARGUMENTS.items() if name not in WITHOUT_EFFECT):
        name = item["name"]
        types = [own[name]] if name in own else [key for key, kind in QUEUE_TYPES.items() if name not in kind.refused]
        found.append(item if len(types) == len(QUEUE_TYPES) else item | {"types": types})
    return found


def document() -> str:
    """Return the module of the console."""
    values: dict[str, list[Any]] = {
        "QUEUE_TYPES": [{"name": name, "needs": kind.needs} for name, kind in QUEUE_TYPES.items()],
        "EXCHANGE_TYPES": list(EXCHANGE_TYPES),
        "QUEUE_ARGUMENTS": queue_arguments(),
        "EXCHANGE_ARGUMENTS": described_all(
            argument for name, argument in EXCHANGE_ARGUMENTS.items() if name not in WITHOUT_EFFECT
        ),
        "POLICY_KEYS": [described(key.argument) | {"operator": key.operator} for key in KEYS.values() if key.setting],
    }
    lines = []
    for name, rows in values.items():
        lines += [f"export const {name} = [", *(f"  {json.dumps(row)}," for row in rows), "];"]
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(document(), "utf-8")
