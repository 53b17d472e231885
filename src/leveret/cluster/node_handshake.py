"""The start of a connection between two nodes: both prove that they know the cluster's secret, then one makes a request.

A message is its size in 4 bytes, and a tagged object in MessagePack. The node that connects is the caller:

    caller                                node
    Hello                       ->
                                <-        Challenge, with the proof of the node
    Request, with the proof of the caller ->
                                <-        Accepted, Moved or Refusal

A proof is an HMAC over the nonces of both sides, their names and the request. No more than the handshake is read from the
socket, which the parties then use for other data.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import socket
import struct
from typing import Final, TypeAlias, TypeVar

import msgspec

from leveret.protocols.adoption import Adoption
from leveret.storage.cluster import LINK_FORMAT

NONCE_SIZE: Final = 32
# Bytes of a message before the proof of its sender, and of any message.
MAX_UNPROVEN: Final = 1 << 10
MAX_MESSAGE: Final = 200 << 10

_SIZE: Final = struct.Struct(">I")
_CALLER: Final = "caller"
_NODE: Final = "node"


class LinkFailed(Exception):
    """A node cannot be reached, or refuses a request."""


class Mismatch(LinkFailed):
    """Two nodes do not accept each other, which only their operator can change."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The caller: the format of its messages, its name, the name of the node that it wants, and its nonce."""

    version: int
    caller: str
    node: str
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, tag=True):
    """The node: its nonce and its proof."""

    nonce: bytes
    proof: bytes


class Request(msgspec.Struct, frozen=True, tag=True):
    """The caller: its proof, and the request, a `Connect` or `Control` in MessagePack."""

    proof: bytes
    request: bytes


class Connect(msgspec.Struct, frozen=True, tag=True):
    """Request to serve a client. The stream of the client follows.

    Attributes:
        shard: The shard that the client is for.
        epoch: The epoch of its owner, as the caller knows it.
        adoption: The client.
    """

    shard: int
    epoch: int
    adoption: Adoption


class Control(msgspec.Struct, frozen=True, tag=True):
    """Request for the control socket of a shard, or of the node for None. Its stream follows."""

    shard: int | None


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """The node does what is requested."""


class Moved(msgspec.Struct, frozen=True, tag=True):
    """The node does not own the shard."""


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """Either side ends the handshake."""

    text: str


Message: TypeAlias = Hello | Challenge | Request | Accepted | Moved | Refusal
Requested: TypeAlias = Connect | Control

_ENCODER: Final = msgspec.msgpack.Encoder()
_MESSAGE: Final = msgspec.msgpack.Decoder(Message)
_REQUESTED: Final = msgspec.msgpack.Decoder(Requested)

M = TypeVar("M", Hello, Challenge, Request, Accepted)


async def call(
    sock: socket.socket, secret: bytes, caller: str, node: str, requested: Requested, link_format: int = LINK_FORMAT
) -> None:
    """Perform the handshake of the caller.

    Args:
        sock: The connected socket.
        secret: The secret of the cluster.
        caller: The name of the caller.
        node: The name of the node that is called.
        requested: The request.
        link_format: The format of the messages, which the other side knows if it is the one in use.

    Raises:
        Mismatch: The other side does not know the secret, or is another node.
        LinkFailed: The other side refuses the request.
        OSError: The connection is lost.
    """
    hello = Hello(link_format, caller, node, os.urandom(NONCE_SIZE))
    await _send(sock, hello)
    try:
        challenge = await _receive(sock, Challenge, MAX_UNPROVEN)
    except LinkFailed as error:
        raise Mismatch(str(error)) from None
    if not hmac.compare_digest(challenge.proof, _proof(secret, _NODE, hello, challenge.nonce, b"")):
        await _send(sock, Refusal("the node does not know the secret of the cluster"))
        raise Mismatch("it does not know the secret of the cluster")
    request = _ENCODER.encode(requested)
    await _send(sock, Request(_proof(secret, _CALLER, hello, challenge.nonce, request), request))
    await _receive(sock, Accepted, MAX_UNPROVEN)


class Answering:
    """The handshake of the node that was called.

    Args:
        sock: The accepted socket.
        secret: The secret of the cluster.
        node: The name of the node.
        refusal: Why the node accepts no request over this socket; "" if it does.

    Attributes:
        caller: The name of the caller, as it says, once it is known.
    """

    def __init__(self, sock: socket.socket, secret: bytes, node: str, refusal: str = "") -> None:
        self.caller = ""
        self._refusal = refusal
        self._socket = sock
        self._secret = secret
        self._node = node

    async def take_request(self) -> Requested:
        """Return the request of a caller that has proved to know the secret.

        Raises:
            LinkFailed: The caller does not know the secret, or breaks the protocol.
            OSError: The connection is lost.
        """
        hello = await _receive(self._socket, Hello, MAX_UNPROVEN)
        self.caller = hello.caller
        if self._refusal:
            raise await self._refuse(self._refusal)
        if not 1 <= hello.version <= LINK_FORMAT:
            raise await self._refuse(
                f"link format {hello.version} is not supported: node '{self._node}' knows up to {LINK_FORMAT}; install the"
                " same version of Leveret on both nodes"
            )
        if hello.node != self._node:
            raise await self._refuse(f"this is node '{self._node}', not '{hello.node}'")
        if len(hello.nonce) != NONCE_SIZE:
            raise await self._refuse(f"a nonce of {len(hello.nonce)} bytes; expected {NONCE_SIZE}")
        nonce = os.urandom(NONCE_SIZE)
        await _send(self._socket, Challenge(nonce, _proof(self._secret, _NODE, hello, nonce, b"")))
        request = await _receive(self._socket, Request, MAX_MESSAGE)
        if not hmac.compare_digest(request.proof, _proof(self._secret, _CALLER, hello, nonce, request.request)):
            raise await self._refuse("the caller does not know the secret of the cluster")
        try:
            requested: Requested = _REQUESTED.decode(request.request)
        except msgspec.MsgspecError as error:
            raise await self._refuse(f"unknown request: {error}") from None
        return requested

    async def _refuse(self, text: str) -> LinkFailed:
        return await refuse(self._socket, text)

    async def answer(self, answer: Accepted | Moved | Refusal) -> None:
        """Answer the request."""
        await _send(self._socket, answer)


async def refuse(sock: socket.socket, text: str) -> LinkFailed:
    """Tell a caller why it is refused. Returns the error to raise. Raises `OSError`."""
    await _send(sock, Refusal(text))
    return LinkFailed(text)


def _proof(secret: bytes, side: str, hello: Hello, nonce: bytes, request: bytes) -> bytes:
    return hmac.digest(secret, _ENCODER.encode((side, hello, nonce, hashlib.sha256(request).digest())), "sha256")


async def _send(sock: socket.socket, message: Message) -> None:
    encoded = _ENCODER.encode(message)
    await asyncio.get_running_loop().sock_sendall(sock, _SIZE.pack(len(encoded)) + encoded)


async def _receive(sock: socket.socket, kind: type[M], max_size: int) -> M:
    """Receive a message of a kind. Raises `LinkFailed` for another one."""
    (size,) = _SIZE.unpack(await _read(sock, _SIZE.size))
    if size > max_size:
        raise LinkFailed(f"it sent a message of {size} bytes; expected at most {max_size}")
    try:
        message = _MESSAGE.decode(await _read(sock, size))
    except msgspec.MsgspecError:
        raise LinkFailed("it sent an invalid message") from None
    if isinstance(message, kind):
        return message
    match message:
        case Refusal():
            raise LinkFailed(message.text)
        case Moved():
            raise LinkFailed("it does not own the shard")
        case _:
            raise LinkFailed(f"it sent {type(message).__name__}; expected {kind.__name__}")


async def _read(sock: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes, since what follows the handshake belongs to others."""
    loop = asyncio.get_running_loop()
    data = bytearray(size)
    view = memoryview(data)
    received = 0
    while received < size:
        count = await loop.sock_recv_into(sock, view[received:])
        if not count:
            raise ConnectionResetError("it closed the connection")
        received += count
    return bytes(data)
