"""SCRAM keys of passwords (RFC 5802, RFC 7677): two keys per hash, which are useless for logging in elsewhere.

The library `scramp` does the arithmetic. It is imported at the first use: that takes part of the time to start.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence

import msgspec

# Key size in bytes by mechanism.
KEY_BYTES = {"SCRAM-SHA-512": 64, "SCRAM-SHA-256": 32}
# Rounds of PBKDF2, which each client computes at each login: the most that Cyrus SASL takes, and so Qpid Proton.
ITERATIONS = 65536
SALT_BYTES = 16


class ScramKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of one user for one mechanism (RFC 5802 section 3)."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


# By mechanism. Empty for a password that SCRAM cannot take; it has to be text, of characters that SASLprep allows.
Keys = dict[str, ScramKeys]


class Keyring:
    """Makes real and fake SCRAM keys.

    mechanisms  those that keys are made for
    secret      32 bytes that salts are derived from. It outlives restarts, so that an unknown name always gets the same
                salt, as a user does.
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
        """Make the keys of a password. Blocking: about 50 ms, without the interpreter's lock."""
        from scramp import ScramException, ScramMechanism

        keys = {}
        for mechanism in self.mechanisms:
            try:
                salt, stored_key, server_key, iterations = ScramMechanism(mechanism).make_auth_info(
                    password.decode("utf-8"), self.iterations, self.salt(mechanism, name))
            except (ScramException, UnicodeDecodeError):
                return {}
            keys[mechanism] = ScramKeys(salt=salt, iterations=iterations, stored_key=stored_key, server_key=server_key)
        return keys

    def fake(self, mechanism: str, name: str) -> ScramKeys:
        """Return keys that match no password, with the salt and the cost of real ones."""
        size = KEY_BYTES[mechanism]
        return ScramKeys(salt=self.salt(mechanism, name), iterations=self.iterations,
                         stored_key=secrets.token_bytes(size), server_key=secrets.token_bytes(size))

    def complete(self, keys: Keys | None) -> bool:
        """Whether these are all keys that there can be of a password."""
        return keys is not None and (not keys or all(name in keys for name in self.mechanisms))
