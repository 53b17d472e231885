"""Reply codes (0-9-1 section 1.2) of the broker's error conditions, and reply texts."""

from __future__ import annotations

from typing import Final

CODES: Final[dict[str, int]] = {
    "content-too-large": 311,
    "no-route": 312,
    "no-consumers": 313,
    "connection-forced": 320,
    "invalid-path": 402,
    "access-refused": 403,
    "not-found": 404,
    "resource-locked": 405,
    "precondition-failed": 406,
    "frame-error": 501,
    "syntax-error": 502,
    "command-invalid": 503,
    "channel-error": 504,
    "unexpected-frame": 505,
    "resource-error": 506,
    "not-allowed": 530,
    "not-implemented": 540,
    "internal-error": 541,
}
NAMES: Final[dict[int, str]] = {code: name.upper().replace("-", "_") for name, code in CODES.items()}
HARD_ERRORS: Final = frozenset((320, 402, 501, 502, 503, 504, 505, 506, 530, 540, 541))

# Reply text for an internal error.
FAILURE: Final = "internal error; see the broker's log"


def reply_text(code: int, text: str) -> str:
    """Return the reply text: the name of the code, as in RabbitMQ, and the error; at most 255 bytes."""
    full = f"{NAMES.get(code, 'ERROR')} - {text}"
    data = full.encode("utf-8", "replace")
    if len(data) <= 255:
        return data.decode("utf-8")
    return data[:252].decode("utf-8", "ignore") + "..."
