"""Password hashing with argon2id, RabbitMQ's hashes, and a cache of verdicts, so that a reconnect costs no hash."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final

# OWASP's parameters with the lowest memory: 7 MiB and five passes, about 16 ms. A flood of logins uses little memory.
MEMORY_KIB = 7168
PASSES = 5
LANES = 1

# Dummy hash for users without one, so that the check costs the same; it matches no known password.
DUMMY_HASH = (
    f"$argon2id$v=19$m={MEMORY_KIB},t={PASSES},p={LANES}$bGV2ZXJldC1uby1zYWx0IQ$bm8gcGFzc3dvcmQgaGFzIHRoaXMgaGFzaCwgZXZlci4"
)

# Maximum number of cached digests per verdict, and the seconds for which a verdict replaces a hash.
MAX_VERDICTS = 4096
VERDICT_SECONDS = 60.0

# RabbitMQ's names of hashing algorithms, and the hash functions.
RABBITMQ_SHA256: Final = "rabbit_password_hashing_sha256"
RABBITMQ_ALGORITHMS: Final[dict[str, Callable[[bytes], hashlib._Hash]]] = {
    RABBITMQ_SHA256: hashlib.sha256,
    "rabbit_password_hashing_sha512": hashlib.sha512,
    "rabbit_password_hashing_md5": partial(hashlib.md5, usedforsecurity=False),
}
RABBITMQ_SALT_BYTES: Final = 4
# The name of argon2id in definitions and in the HTTP API, and the highest costs of a hash from there: those of RFC 9106.
ARGON2ID: Final = "leveret_password_hashing_argon2id"
MAX_MEMORY_KIB: Final = 65536
MAX_PASSES: Final = 16
MAX_LANES: Final = 8
# A salt of at least 8 bytes, and a hash of at least 12, as argon2 requires.
_PHC: Final = re.compile(
    r"\$argon2id\$v=19\$m=(\d{1,9}),t=(\d{1,9}),p=(\d{1,9})\$[A-Za-z0-9+/]{11,86}\$[A-Za-z0-9+/]{16,86}", re.ASCII
)


def rabbitmq_hash(password: bytes, algorithm: str = RABBITMQ_SHA256) -> str:
    """Return a hash in RabbitMQ's format: base64 of a random salt of 4 bytes and the hash of salt and password."""
    salt = secrets.token_bytes(RABBITMQ_SALT_BYTES)
    return base64.b64encode(salt + RABBITMQ_ALGORITHMS[algorithm](salt + password).digest()).decode()


def check_hash(hash: str, algorithm: str) -> None:
    """Raise ValueError if a text is not a hash of this algorithm: argon2id, or one of RabbitMQ in RabbitMQ's format."""
    if algorithm == ARGON2ID:
        _check_argon2id(hash)
        return
    if algorithm not in RABBITMQ_ALGORITHMS:
        expected = ", ".join((ARGON2ID, *RABBITMQ_ALGORITHMS))
        raise ValueError(f"unknown hashing algorithm '{algorithm}'; expected one of {expected}")
    size = RABBITMQ_SALT_BYTES + RABBITMQ_ALGORITHMS[algorithm](b"").digest_size
    if len(_decoded(hash)) != size:
        raise ValueError(f"invalid password hash: expected {size} bytes in base64 for '{algorithm}'")


def _check_argon2id(hash: str) -> None:
    found = _PHC.fullmatch(hash)
    if found is None:
        raise ValueError("invalid password hash: expected one of argon2id in PHC notation, $argon2id$v=19$...")
    memory, passes, lanes = (int(value) for value in found.groups())
    if not (8 * lanes <= memory <= MAX_MEMORY_KIB and 1 <= passes <= MAX_PASSES and 1 <= lanes <= MAX_LANES):
        raise ValueError(
            f"invalid password hash: the costs are m={memory},t={passes},p={lanes};"
            f" expected at most m={MAX_MEMORY_KIB},t={MAX_PASSES},p={MAX_LANES}"
        )


def verify_rabbitmq_hash(hash: str, algorithm: str, password: bytes) -> bool:
    """Return whether a password matches a hash in RabbitMQ's format. An empty password matches none."""
    raw = _decoded(hash)
    function = RABBITMQ_ALGORITHMS.get(algorithm)
    if function is None or not password:
        return False
    expected = function(raw[:RABBITMQ_SALT_BYTES] + password).digest()
    return hmac.compare_digest(raw[RABBITMQ_SALT_BYTES:], expected)


def _decoded(hash: str) -> bytes:
    try:
        return base64.b64decode(hash, validate=True)
    except (binascii.Error, ValueError):
        return b""


class Hasher:
    """Hashes passwords with argon2id. Each call blocks for about 16 ms and releases the GIL."""

    def hash(self, password: bytes, salt: bytes | None = None) -> str:
        """Return a salted hash in PHC notation (`$argon2id$...`). The default salt is random."""
        from argon2 import PasswordHasher  # imported at the first login, to start faster

        return PasswordHasher(time_cost=PASSES, memory_cost=MEMORY_KIB, parallelism=LANES).hash(password, salt=salt)

    def verify(self, hash: str, password: bytes) -> bool:
        """Return whether a password matches a hash; False if the hash is invalid."""
        from argon2.exceptions import InvalidHashError, VerificationError
        from argon2.low_level import Type, verify_secret

        try:
            return verify_secret(hash.encode("ascii"), password, Type.ID)
        except (VerificationError, InvalidHashError, UnicodeEncodeError):
            return False


class Digester:
    """Digests of passwords, valid in this process only: keyed with a secret that is never stored."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def digest(self, name: str, version: int, password: bytes) -> bytes:
        """Return a digest of 32 bytes. `version` changes with the user, which invalidates older verdicts."""
        head = name.encode("utf-8", "surrogateescape")
        text = len(head).to_bytes(4, "big") + head + version.to_bytes(8, "big") + password
        return hmac.digest(self._key, text, hashlib.sha256)


class Verdicts:
    """A thread-safe cache of verdicts by digest. Right and wrong passwords are cached, so that both take the same time.

    A verdict is valid for `VERDICT_SECONDS`. Digests of right passwords are remembered longer, so that their logins can
    be checked first. The two are stored separately, so that wrong passwords do not evict right ones.
    """

    def __init__(self, size: int = MAX_VERDICTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._clock = clock
        # Each with its expiry time.
        self._kept: dict[bool, OrderedDict[bytes, float]] = {True: OrderedDict(), False: OrderedDict()}
        self._lock = threading.Lock()

    def get(self, digest: bytes) -> bool | None:
        """Return the cached verdict; None if there is none or it has expired."""
        now = self._clock()
        with self._lock:
            for verdict, kept in self._kept.items():
                if kept.get(digest, now) > now:
                    return verdict
            return None

    def was_correct(self, digest: bytes) -> bool:
        """Return whether the last cached verdict was right, even if it has expired."""
        with self._lock:
            return digest in self._kept[True]

    def put(self, digest: bytes, verdict: bool) -> None:
        """Cache a verdict, evicting the oldest one."""
        with self._lock:
            self._kept[not verdict].pop(digest, None)
            kept = self._kept[verdict]
            kept[digest] = self._clock() + VERDICT_SECONDS
            kept.move_to_end(digest)
            if len(kept) > self._size:
                kept.popitem(last=False)
