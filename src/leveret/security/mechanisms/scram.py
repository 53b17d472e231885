"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding.

No mechanism whose name ends in -PLUS is offered, so the flag `y` of a client that supports binding is equivalent to
`n`, and `p` is refused. The server's last message is sent with the success, or as another challenge if the protocol has
no field for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.security.mechanisms.base import Blocking, Challenge, Context, Failure, Mechanism, Outcome, Success

# Maximum characters of the client nonce, which must fit into a SASL frame of 512 bytes with the server nonce and the salt.
MAX_NONCE_LENGTH = 256
# Maximum bytes of a message: enough for a name of 255 bytes, escaped and sent twice, and a nonce.
MAX_MESSAGE_LENGTH = 2048

if TYPE_CHECKING:
    from scramp.core import ScramServer


class _Scram(Mechanism):
    """The SCRAM exchange: the client's first message, a challenge, the client's final message, the outcome."""

    speaks_first = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._server: ScramServer | None = None
        self._names: list[str] = []

    @classmethod
    def available(cls, context: Context) -> bool:
        return context.scram_keys is not None

    def step(self, response: bytes) -> Outcome:
        if len(response) > MAX_MESSAGE_LENGTH:
            return Failure(f"{self.name}: a message of {len(response)} bytes; expected at most {MAX_MESSAGE_LENGTH}")
        if self._server is not None:
            return self._final(response)
        return Blocking(lambda: self._first(response))

    def _first(self, response: bytes) -> Outcome:
        from scramp import ScramException, ScramMechanism

        server = ScramMechanism(self.name).make_server(_finder(self.name, self.context, self._names))
        try:
            text, header = _without_authzid(response.decode("utf-8"))
            server.set_client_first(text)
            if header is not None:
                server.gs2_header = header
            if len(server.nonce) - len(server.s_nonce) > MAX_NONCE_LENGTH:
                return Failure(f"{self.name}: the nonce has more than {MAX_NONCE_LENGTH} characters")
            challenge = server.get_server_first()
        except (ScramException, UnicodeDecodeError) as error:
            return Failure(f"{self.name}: {error}")
        self._server = server
        return Challenge(challenge.encode())

    def _final(self, response: bytes) -> Outcome:
        from scramp import ScramException

        (name,) = self._names
        assert self._server is not None
        try:
            self._server.set_client_final(response.decode("utf-8"))
            return Success(name, self._server.get_server_final().encode())
        except (ScramException, UnicodeDecodeError) as error:
            return Failure(f"login of '{name}' by {self.name}: {error}", name)


def _finder(mechanism: str, context: Context, names: list[str]) -> Callable[[str], tuple[bytes, bytes, bytes, int]]:
    """Return a lookup function for the keys of a user, which appends the user name to `names`.

    It does not reference the mechanism object, which avoids a reference cycle.
    """
    find = context.scram_keys
    assert find is not None

    def keys_of(name: str) -> tuple[bytes, bytes, bytes, int]:
        names.append(name)
        keys = find(name, mechanism)
        return keys.salt, keys.stored_key, keys.server_key, keys.iterations

    return keys_of


class _Header:
    """A header with an authorization identity. The library does not support one, but the proof covers the header."""

    def __init__(self, header: bytes) -> None:
        self._header = header

    def make_cbind_input(self, channel_binding: tuple[str, bytes] | None) -> bytes:
        return self._header


def _without_authzid(text: str) -> tuple[str, _Header | None]:
    """Remove an authorization identity that equals the user name from the client's first message.

    Clients of Cyrus SASL send one, which the library rejects. Returns the message and its original header, or None as
    the header if the message is unchanged.
    """
    flag, _, rest = text.partition(",")
    authzid, _, bare = rest.partition(",")
    if authzid.startswith("a=") and bare.startswith(f"n={authzid[2:]},"):
        return f"{flag},,{bare}", _Header(f"{flag},{authzid},".encode())
    return text, None


class ScramSha256(_Scram):
    name = "SCRAM-SHA-256"


class ScramSha512(_Scram):
    name = "SCRAM-SHA-512"
