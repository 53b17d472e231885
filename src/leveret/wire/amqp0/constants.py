"""Constants of AMQP 0-x: frame types and reply codes (0-9-1 section 1.1).

The tables (`table_amqp091.py`, `table_amqp09.py`) list every constant of their version; a test compares them with these.
"""

from __future__ import annotations

from typing import Final

SERVER: Final = 1
CLIENT: Final = 2

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
# Out-of-band methods and contents, and trace data (0-9 only).
FRAME_OOB_METHOD: Final = 4
FRAME_OOB_HEADER: Final = 5
FRAME_OOB_BODY: Final = 6
FRAME_TRACE: Final = 7
FRAME_HEARTBEAT: Final = 8
# Wrappers of methods used by Qpid's peers of 2007 (0-9 only): see `requests`.
FRAME_REQUEST: Final = 9
FRAME_RESPONSE: Final = 10
FRAME_END: Final = 206

FRAME_MIN_SIZE: Final = 4096
# Bytes of a frame without its payload: type, channel and size; and with the frame end.
FRAME_HEADER_SIZE: Final = 7
FRAME_OVERHEAD: Final = 8
# Maximum frame size before the connection is open, regardless of negotiation, because the peer is not authenticated yet.
FRAME_SIZE_BEFORE_OPEN: Final = 8192
# Some clients apply frame-max to the payload, so that their largest frames are 8 bytes longer than negotiated.
FRAME_SLACK: Final = 8

REPLY_SUCCESS: Final = 200
NOT_DELIVERED: Final = 310
CONTENT_TOO_LARGE: Final = 311
NO_ROUTE: Final = 312
NO_CONSUMERS: Final = 313
CONNECTION_FORCED: Final = 320
INVALID_PATH: Final = 402
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

# Soft errors close a channel, hard ones the connection.
SOFT_ERRORS: Final = frozenset(
    (
        NOT_DELIVERED,
        CONTENT_TOO_LARGE,
        NO_ROUTE,
        NO_CONSUMERS,
        ACCESS_REFUSED,
        NOT_FOUND,
        RESOURCE_LOCKED,
        PRECONDITION_FAILED,
    )
)
HARD_ERRORS: Final = frozenset(
    (
        CONNECTION_FORCED,
        INVALID_PATH,
        FRAME_ERROR,
        SYNTAX_ERROR,
        COMMAND_INVALID,
        CHANNEL_ERROR,
        UNEXPECTED_FRAME,
        RESOURCE_ERROR,
        NOT_ALLOWED,
        NOT_IMPLEMENTED,
        INTERNAL_ERROR,
    )
)

REPLY_NAMES: Final[dict[int, str]] = {
    REPLY_SUCCESS: "reply-success",
    NOT_DELIVERED: "not-delivered",
    CONTENT_TOO_LARGE: "content-too-large",
    NO_ROUTE: "no-route",
    NO_CONSUMERS: "no-consumers",
    CONNECTION_FORCED: "connection-forced",
    INVALID_PATH: "invalid-path",
    ACCESS_REFUSED: "access-refused",
    NOT_FOUND: "not-found",
    RESOURCE_LOCKED: "resource-locked",
    PRECONDITION_FAILED: "precondition-failed",
    FRAME_ERROR: "frame-error",
    SYNTAX_ERROR: "syntax-error",
    COMMAND_INVALID: "command-invalid",
    CHANNEL_ERROR: "channel-error",
    UNEXPECTED_FRAME: "unexpected-frame",
    RESOURCE_ERROR: "resource-error",
    NOT_ALLOWED: "not-allowed",
    NOT_IMPLEMENTED: "not-implemented",
    INTERNAL_ERROR: "internal-error",
}
REPLY_CODES: Final[dict[str, int]] = {name: code for code, name in REPLY_NAMES.items()}
