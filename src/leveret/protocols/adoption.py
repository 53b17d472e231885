"""Hand-over of a connection from the process that accepted it to the one that has its vhost.

The process that accepts sockets runs the handshake of the protocol up to the client's `connection.open` (0-9-1, 0-9) or
`open` (1.0), which names the vhost. It does not process that frame, but hands over a socket and an `Adoption` in
MessagePack: what the handshake has found out, and all input from that frame on. The other process continues as if it had
run the handshake itself. It performs the open with all its checks: the permissions of the user, and the limits.

Output of the handshake is written to the socket before the hand-over, so no part of it is left to send. Input that has not
been read is still in the socket.
"""

from __future__ import annotations

import msgspec

from leveret.management.descriptions import TlsInfo
from leveret.security.accounts import ExportedAccount


class PeerFacts(msgspec.Struct, frozen=True):
    """The client's socket, as in `Peer`. The socket that is handed over may be another one, to a relay."""

    name: str
    host: str
    local: bool
    tls: bool
    connected_at: int
    websocket_path: str = ""
    mechanism: str = ""
    tls_info: TlsInfo | None = None


class TunedClient(msgspec.Struct, frozen=True):
    """Client of 0-9-1 or 0-9, by its `start-ok` and `tune-ok`.

    Attributes:
        properties: The client properties, as an encoded field table of RabbitMQ's dialect without its length.
        frame_max: The values that both sides have agreed on; also the next two.
    """

    properties: bytes
    frame_max: int
    channel_max: int
    heartbeat: int


class Adoption(msgspec.Struct):
    """A connection that is handed over.

    Attributes:
        protocol: The protocol, a result of `detect`.
        connection: The number of the connection in the process that accepted it.
        peer: The client's socket.
        input: The client's input from its open on.
        account: The account of the user.
        client: The client of 0-9-1 or 0-9; None for 1.0.
        elsewhere: The number of open connections of the broker in other processes than the receiving one. The limit
            on connections counts them.
        elsewhere_of_user: The same for the user of the connection.
        node: The other node that relays for the client; "" if none does.
    """

    protocol: int
    connection: int
    peer: PeerFacts
    input: bytes
    account: ExportedAccount
    client: TunedClient | None = None
    elsewhere: int = 0
    elsewhere_of_user: int = 0
    node: str = ""
