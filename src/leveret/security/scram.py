"""SCRAM keys of passwords (RFC 5802, RFC 7677): two keys per hash, which cannot be used to log in elsewhere.

The library `scramp` does the arithmetic. It is imported on first use, to start faster.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence

import msgspec

# Key size in bytes by mechanism.
KEY_BYTES = {"SCRAM-SHA-512": 64, "SCRAM-SHA-256": 32}
# Rounds of PBKDF2, which a client computes at each login: the maximum of Cyrus SASL, and thus of Qpid Proton.
ITERATIONS = 65536
SALT_BYTES = 16
# Limits of imported keys. RFC 7677 has the lower one.
MIN_ITERATIONS = 4096
MAX_ITERATIONS = 10_000_000
MAX_SALT_BYTES = 255


class ScramKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of one user for one mechanism (RFC 5802 section 3)."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


# By mechanism. Empty for a password that SCRAM does not support: it must be text that SASLprep allows.
Keys = dict[str, ScramKeys]


def format_keys(keys: Keys) -> list[str]:
    """Return keys as text in the format of PostgreSQL and RFC 5803: `SCRAM-SHA-256$65536:SALT$STORED_KEY:SERVER_KEY`."""
    return [
        f"{name}${one.iterations}:{_base64(one.salt)}${_base64(one.stored_key)}:{_base64(one.server_key)}"
        for name, one in keys.items()
    ]


def parse_keys(texts: Sequence[str]) -> Keys:
    """Return the keys of texts that `format_keys` has made. Raises ValueError."""
    keys = {}
    for text in texts:
        mechanism = text.partition("$")[0]
        try:
            _, cost, parts = text.split("$")
            iterations, salt = cost.split(":")
            stored, server = (base64.b64decode(part, validate=True) for part in parts.split(":"))
            found = ScramKeys(
                salt=base64.b64decode(salt, validate=True), iterations=int(iterations), stored_key=stored, server_key=server
            )
        except (binascii.Error, ValueError):
            found = None
        if (
            found is None
            or not MIN_ITERATIONS <= found.iterations <= MAX_ITERATIONS
            or not 1 <= len(found.salt) <= MAX_SALT_BYTES
            or not len(found.stored_key) == len(found.server_key) == KEY_BYTES.get(mechanism)
        ):
            raise ValueError(
                f"invalid SCRAM key; expected MECHANISM$ITERATIONS:SALT$STORED_KEY:SERVER_KEY in base64, with"
                f" {' or '.join(KEY_BYTES)} and {MIN_ITERATIONS} to {MAX_ITERATIONS} iterations"
            )
        keys[mechanism] = found
    return keys


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


class Keyring:
    """Creates real and fake SCRAM keys.

    mechanisms  the mechanisms to create keys for
    secret      32 bytes that salts are derived from. It survives restarts, so that the salt of an unknown name does not
                change, like that of a user.
    """

    def __init__(self, mechanisms: Sequence[str] = (), iterations: int = ITERATIONS) -> None:
        self.mechanisms = tuple(name for name in mechanisms if name in KEY_BYTES)
        self.iterations = iterations
        self.secret = secrets.token_bytes(32)

    def salt(self, mechanism: str, name: str) -> bytes:
        """Return the salt for a name, whether or not the user exists."""
        text = f"{mechanism}\0{name}".encode("utf-8", "surrogateescape")
        return hmac.digest(self.secret, text, hashlib.sha256)[:SALT_BYTES]

    def make(self, name: str, password: bytes) -> Keys:
        """Create the keys of a password. Blocks for about 50 ms and releases the GIL."""
        from scramp import ScramException, ScramMechanism

        keys = {}
        for mechanism in self.mechanisms:
            try:
                salt, stored_key, server_key, iterations = ScramMechanism(mechanism).make_auth_info(
                    password.decode("utf-8"), self.iterations, self.salt(mechanism, name)
                )
            except (ScramException, UnicodeDecodeError):
                return {}
            keys[mechanism] = ScramKeys(salt=salt, iterations=iterations, stored_key=stored_key, server_key=server_key)
        return keys

    def fake(self, mechanism: str, name: str) -> ScramKeys:
        """Return keys that match no password, with the salt and the cost of real ones."""
        size = KEY_BYTES[mechanism]
        return ScramKeys(
            salt=self.salt(mechanism, name),
            iterations=self.iterations,
            stored_key=secrets.token_bytes(size),
            server_key=secrets.token_bytes(size),
        )

    def complete(self, keys: Keys | None) -> bool:
        """Return whether no key is missing: there is one for each mechanism, or SCRAM does not support the password."""
        return keys is not None and (not keys or all(name in keys for name in self.mechanisms))
