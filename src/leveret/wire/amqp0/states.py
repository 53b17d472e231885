"""The states of a connection and of a channel, and all transitions (0-9-1 sections 2.2.4 and 2.2.5).

Each peer has one state for the connection and one for each channel. Methods of the classes connection and channel change
them, both when they are sent and when they are received. One table serves both peers, because almost every one of these
methods has only one possible sender, which the method tables check. Only the close methods have two, so the table
distinguishes SENT and RECEIVED.

A received request takes effect when it is parsed: after `connection.open`, the peer may continue at once as if it had been
granted, and a closed channel can be opened again. The caller answers later, in order.

A transition without a row is illegal: it causes reply code 503 if the method is received, and an error of the caller if it
is sent.
"""

from __future__ import annotations

from typing import Final

SENT: Final = 0
RECEIVED: Final = 1

# States of the connection, named by the expected method.
START: Final = 0
START_OK: Final = 1
SECURE_OR_TUNE: Final = 2
SECURE_OK: Final = 3
TUNE_OK: Final = 4
OPEN: Final = 5
OPEN_OK: Final = 6
OPENED: Final = 7
# The peer violated the protocol: all input is discarded, and our close follows.
FAILED: Final = 8
# We have sent close: all input except close and close-ok is discarded.
CLOSING: Final = 9
# The peer has sent close and waits for close-ok; nothing else is received or sent.
CLOSE_RECEIVED: Final = 10
CLOSED: Final = 11

# States of a channel.
CHANNEL_CLOSED: Final = 0
CHANNEL_OPEN: Final = 1
# As for the connection, except that a close is accepted, and answered after ours has been sent.
CHANNEL_FAILED: Final = 2
CHANNEL_CLOSING: Final = 3

STATE_NAMES: Final = (
    "START",
    "START_OK",
    "SECURE_OR_TUNE",
    "SECURE_OK",
    "TUNE_OK",
    "OPEN",
    "OPEN_OK",
    "OPENED",
    "FAILED",
    "CLOSING",
    "CLOSE_RECEIVED",
    "CLOSED",
)

_CONNECTION_ROWS: Final = (
    (START, "connection.start", START_OK),
    (START_OK, "connection.start-ok", SECURE_OR_TUNE),
    (SECURE_OR_TUNE, "connection.secure", SECURE_OK),
    (SECURE_OK, "connection.secure-ok", SECURE_OR_TUNE),
    (SECURE_OR_TUNE, "connection.tune", TUNE_OK),
    (TUNE_OK, "connection.tune-ok", OPEN),
    (OPEN, "connection.open", OPEN_OK),
    (OPEN_OK, "connection.open-ok", OPENED),
    (OPEN_OK, "connection.redirect", OPEN_OK),
    (OPENED, "connection.blocked", OPENED),
    (OPENED, "connection.unblocked", OPENED),
    (OPENED, "connection.update-secret", OPENED),
    (OPENED, "connection.update-secret-ok", OPENED),
)
# Either peer may close at any time after the server's start.
CLOSABLE: Final = (START_OK, SECURE_OR_TUNE, SECURE_OK, TUNE_OK, OPEN, OPEN_OK, OPENED)

_CHANNEL_ROWS: Final = (
    (CHANNEL_CLOSED, SENT, "channel.open", CHANNEL_OPEN),
    (CHANNEL_CLOSED, RECEIVED, "channel.open", CHANNEL_OPEN),
    (CHANNEL_CLOSED, SENT, "channel.resume", CHANNEL_OPEN),
    (CHANNEL_CLOSED, RECEIVED, "channel.resume", CHANNEL_OPEN),
    (CHANNEL_OPEN, SENT, "channel.close", CHANNEL_CLOSING),
    (CHANNEL_OPEN, RECEIVED, "channel.close", CHANNEL_CLOSED),
    (CHANNEL_FAILED, SENT, "channel.close", CHANNEL_CLOSING),
    (CHANNEL_FAILED, RECEIVED, "channel.close", CHANNEL_FAILED),
    # Both closed at once: each answers the other's close (the engine does that) and waits for the answer to its own.
    (CHANNEL_CLOSING, RECEIVED, "channel.close", CHANNEL_CLOSING),
    (CHANNEL_CLOSING, RECEIVED, "channel.close-ok", CHANNEL_CLOSED),
    # The answer to a received close: the channel is closed, or already open again.
    (CHANNEL_CLOSED, SENT, "channel.close-ok", CHANNEL_CLOSED),
    (CHANNEL_OPEN, SENT, "channel.close-ok", CHANNEL_OPEN),
)
_CHANNEL_METHODS_WITHOUT_EFFECT: Final = (
    "channel.open-ok",
    "channel.flow",
    "channel.flow-ok",
    "channel.ping",
    "channel.pong",
    "channel.ok",
)


def _connection_transitions() -> dict[tuple[int, int, str], int]:
    transitions: dict[tuple[int, int, str], int] = {}
    for state, method, following in _CONNECTION_ROWS:
        transitions[state, SENT, method] = following
        transitions[state, RECEIVED, method] = following
    for state in CLOSABLE:
        transitions[state, SENT, "connection.close"] = CLOSING
        transitions[state, RECEIVED, "connection.close"] = CLOSE_RECEIVED
    transitions[FAILED, SENT, "connection.close"] = CLOSING
    # Both closed at once: each answers the other's close (the engine does that) and waits for the answer to its own.
    transitions[CLOSING, RECEIVED, "connection.close"] = CLOSING
    transitions[CLOSING, RECEIVED, "connection.close-ok"] = CLOSED
    transitions[CLOSE_RECEIVED, SENT, "connection.close-ok"] = CLOSED
    return transitions


def _channel_transitions() -> dict[tuple[int, int, str], int]:
    transitions = {(state, way, method): following for state, way, method, following in _CHANNEL_ROWS}
    for method in _CHANNEL_METHODS_WITHOUT_EFFECT:
        transitions[CHANNEL_OPEN, SENT, method] = CHANNEL_OPEN
        transitions[CHANNEL_OPEN, RECEIVED, method] = CHANNEL_OPEN
    return transitions


# Next state by state, SENT or RECEIVED, and method.
CONNECTION: Final[dict[tuple[int, int, str], int]] = _connection_transitions()
CHANNEL: Final[dict[tuple[int, int, str], int]] = _channel_transitions()

# The states in which methods of all other classes, and contents, may be received and sent.
USABLE: Final = frozenset((OPEN_OK, OPENED))
