"""SCRAM keys of passwords (RFC 5802, RFC 7677): two keys per hash, which cannot be used to log in elsewhere.

The library `scramp` does the arithmetic. It is imported on first use, to start faster.
"""

from __future__ import annotations

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


class ScramKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of one user for one mechanism (RFC 5802 section 3)."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


# By mechanism. Empty for a password that SCRAM does not support: it must be text that SASLprep allows.
Keys = dict[str, ScramKeys]


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
