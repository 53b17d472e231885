"""Public keys of an identity provider: JSON Web Key Sets and PEM files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Final

from joserfc import jwk
from joserfc.errors import JoseError

logger = logging.getLogger("leveret.oauth")

# Maximum number of keys, and bytes of a set.
MAX_KEYS: Final = 100
MAX_BYTES: Final = 1 << 18
# Bits of an RSA key. A larger one would make each verification slow.
MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192
MAX_RSA_EXPONENT: Final = 1 << 32

# Key type and curve by algorithm. The algorithms are fixed by the configuration; there are none with shared secrets.
_KEY_TYPES: Final = {
    "RS256": ("RSA", ""),
    "RS384": ("RSA", ""),
    "RS512": ("RSA", ""),
    "PS256": ("RSA", ""),
    "PS384": ("RSA", ""),
    "PS512": ("RSA", ""),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "Ed25519": ("OKP", "Ed25519"),
    # The older name of Ed25519.
    "EdDSA": ("OKP", "Ed25519"),
}


class InvalidKeys(Exception):
    """A set of keys that cannot be used."""


class Key:
    """One public key."""

    def __init__(self, key: jwk.RSAKey | jwk.ECKey | jwk.OKPKey) -> None:
        self.key = key
        found = key.as_dict(private=False)
        self.id = found.get("kid")
        self._type = found["kty"], found.get("crv", "")
        self._algorithm = found.get("alg")
        self._use = found.get("use")

    def verifies(self, algorithm: str) -> bool:
        """Return whether tokens with this algorithm may be signed with the key."""
        kind, curve = _KEY_TYPES[algorithm]
        return self._type == (kind, curve) and self._algorithm in (None, algorithm) and self._use in (None, "sig")


class Keys:
    """A set of public keys."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys = list(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, id: str | None, algorithm: str) -> Key | None:
        """Return the key with this id. A token without an id matches only if there is exactly one key for its algorithm."""
        found = [key for key in self._keys if key.verifies(algorithm) and id in (None, key.id)]
        return found[0] if len(found) == 1 else None


def read_keys(content: bytes, source: str) -> Keys:
    """Return the keys of a JSON Web Key Set, or of PEM text. Raises `InvalidKeys`."""
    if len(content) > MAX_BYTES:
        raise InvalidKeys(f"{source} has {len(content)} bytes; expected at most {MAX_BYTES}")
    if content.lstrip().startswith(b"-----BEGIN"):
        return _read_pem(content, source)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidKeys(f"{source} is not JSON: {error}") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise InvalidKeys(f"{source} is not a JSON Web Key Set; expected an object with the list 'keys'")
    if len(entries) > MAX_KEYS:
        raise InvalidKeys(f"{source} has {len(entries)} keys; expected at most {MAX_KEYS}")
    found: list[Key] = []
    for entry in entries:
        try:
            found.append(_import(entry))
        except InvalidKeys as reason:
            logger.info("%s: ignored a key: %s", source, reason)
    if not found:
        raise InvalidKeys(f"{source} has no usable key; expected a public RSA, EC or Ed25519 key")
    return Keys(found)


def _read_pem(content: bytes, source: str) -> Keys:
    for kind in (jwk.RSAKey, jwk.ECKey, jwk.OKPKey):
        try:
            return Keys([_checked(kind.import_key(content))])
        except (ValueError, TypeError, JoseError):
            continue
    raise InvalidKeys(f"{source} is not a public key in PEM; expected an RSA, EC or Ed25519 key")


def _import(entry: object) -> Key:
    if not isinstance(entry, dict):
        raise InvalidKeys("expected an object")
    kind = entry.get("kty")
    try:
        if kind == "RSA":
            return _checked(jwk.RSAKey.import_key(entry))
        if kind == "EC":
            return _checked(jwk.ECKey.import_key(entry))
        if kind == "OKP":
            return _checked(jwk.OKPKey.import_key(entry))
    except InvalidKeys:
        raise
    except Exception as error:
        # The libraries raise errors of many types for wrong fields.
        raise InvalidKeys(f"{type(error).__name__}: {error}") from None
    raise InvalidKeys(f"its type is {str(kind)[:20]!r}; expected RSA, EC or OKP")


def _checked(key: jwk.RSAKey | jwk.ECKey | jwk.OKPKey) -> Key:
    if key.key_type == "RSA":
        assert isinstance(key, jwk.RSAKey)
        numbers = key.public_key.public_numbers()
        bits = numbers.n.bit_length()
        if not MIN_RSA_BITS <= bits <= MAX_RSA_BITS or numbers.e >= MAX_RSA_EXPONENT:
            raise InvalidKeys(
                f"an RSA key of {bits} bits; expected {MIN_RSA_BITS} to {MAX_RSA_BITS} and an exponent of up to 32 bits"
            )
    return Key(key)
