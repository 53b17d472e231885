"""The client's side of SCRAM (RFC 5802), by hand: another reading of it than the library's that the broker uses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class ScramClient:
    """One exchange: `first`, `final`, and what the server has to prove at the end.

    flag  the beginning of the first message: `n,,` for a client that cannot bind channels, `y,,` for one that could
    """

    def __init__(self, mechanism: str, user: str, password: str, *, nonce: str = "", flag: str = "n,,") -> None:
        self.mechanism = mechanism
        self.hash = HASHES[mechanism]
        self.password = password.encode()
        self.flag = flag
        self.nonce = nonce or secrets.token_hex(12)
        self.bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={self.nonce}"
        self.salt = b""
        self.iterations = 0
        self.server_nonce = ""
        self.signature = b""

    def first(self) -> bytes:
        return (self.flag + self.bare).encode()

    def final(self, server_first: bytes) -> bytes:
        text = server_first.decode()
        fields = dict(part.split("=", 1) for part in text.split(","))
        self.server_nonce = fields["r"]
        self.salt = base64.b64decode(fields["s"])
        self.iterations = int(fields["i"])
        assert self.server_nonce.startswith(self.nonce) and len(self.server_nonce) > len(self.nonce)
        salted = hashlib.pbkdf2_hmac(self.hash, self.password, self.salt, self.iterations)
        without_proof = f"c={base64.b64encode(self.flag.encode()).decode()},r={self.server_nonce}"
        message = f"{self.bare},{text},{without_proof}".encode()
        client_key = self._mac(salted, b"Client Key")
        signature = self._mac(hashlib.new(self.hash, client_key).digest(), message)
        self.signature = self._mac(self._mac(salted, b"Server Key"), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """The server knows the password, too."""
        assert server_final == b"v=" + base64.b64encode(self.signature)

    def _mac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, self.hash)
