"""Records of administrative changes, and what they must not contain: passwords and hashes."""

from __future__ import annotations

import re
from typing import Final

from leveret.management.credentials import names_uri, without_credentials
from leveret.management.json_values import Json, ReplyValue, encode_json, plain
from leveret.management.structs import Reply

# Maximum bytes of a state as JSON. A larger one is left out.
MAX_STATE: Final = 64 << 10
REDACTED: Final = "(hidden)"

_SECRET: Final = re.compile(r"pass(word|wd|phrase)|secret|token|private_?key|credential", re.IGNORECASE)


class AuditRecord(Reply, kw_only=True):
    """A change.

    Attributes:
        id: Increases by one per change.
        time: Milliseconds of Unix time.
        user: The user; the name of the operating system's user for `leveret` on the broker's machine.
        source: Where the request came from.
        action: The operation.
        kind: The kind of the object.
        vhost: The vhost of the object, "" for none.
        name: The name of the object.
        before: Its definition before the change; None if it did not exist.
        after: Its definition after the change, or the result of the operation.
    """

    id: int = 0
    time: int
    user: str
    source: str
    action: str
    kind: str
    vhost: str
    name: str
    before: ReplyValue = None
    after: ReplyValue = None


def redacted(value: object) -> Json:
    """Return a value as JSON without passwords: those in keys with such a name, and in URIs."""
    return _without_secrets(plain(value))


def _without_secrets(value: Json, key: str = "") -> Json:
    if _SECRET.search(key) and not isinstance(value, bool):
        return REDACTED
    if isinstance(value, dict):
        return {name: _without_secrets(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_secrets(inner, key) for inner in value]
    return without_credentials(value, REDACTED, is_uri=names_uri(key)) if isinstance(value, str) else value


def bounded(value: object) -> Json:
    """Return a state for a record."""
    shown = redacted(value)
    size = len(encode_json(shown))
    return shown if size <= MAX_STATE else {"omitted": f"{size} bytes; at most {MAX_STATE} are kept"}
