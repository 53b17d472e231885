"""Records of administrative changes, without passwords and hashes."""

from __future__ import annotations

from typing import Final

from leveret.management.json_values import Json, ReplyValue, encode_json, plain
from leveret.management.redaction import without_secrets
from leveret.management.structs import Reply

# Maximum bytes of a state as JSON. A larger one is left out.
MAX_STATE: Final = 64 << 10
REDACTED: Final = "(hidden)"


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
    """Return a value as JSON without secrets."""
    return without_secrets(plain(value), REDACTED)


def bounded(value: object) -> Json:
    """Return a state for a record."""
    shown = redacted(value)
    size = len(encode_json(shown))
    return shown if size <= MAX_STATE else {"omitted": f"{size} bytes; at most {MAX_STATE} are kept"}
