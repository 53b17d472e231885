"""The client side of SASL, for all protocols."""

from __future__ import annotations

import re
from typing import Any, Final

from leveret.client.errors import AuthenticationFailed
from leveret.client.parameters import SCRAM, Parameters

# Maximum number of SCRAM iterations. More would block the process for seconds.
MAX_ITERATIONS: Final = 1_000_000
_ITERATIONS: Final = re.compile(r",i=([0-9]{1,20})(?:,|$)")


class Login:
    """One SASL exchange.

    SCRAM (RFC 5802, RFC 7677) proves to each side that the other knows the password, without sending it. The library
    `scramp` computes the proofs, which takes about 50 ms.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.mechanism = parameters.mechanism
        self._parameters = parameters
        self._scram: Any = None
        self._checked = self.mechanism not in SCRAM
        self._response = b""
        self._answered = False

    def first(self) -> bytes:
        """Return the initial response."""
        if self.mechanism not in SCRAM:
            self._response = self._parameters.sasl()[1]
            return self._response
        from scramp import ScramClient, ScramException

        try:
            self._scram = ScramClient([self.mechanism], self._parameters.user, self._parameters.password)
            first: str = self._scram.get_client_first()
        except (ScramException, ValueError) as error:
            raise self._failed(f"{error}; expected a user name and a password that SCRAM allows") from error
        return first.encode()

    def respond(self, challenge: bytes) -> bytes:
        """Return the response to a challenge.

        Raises:
            AuthenticationFailed: The challenge is invalid, or the server does not know the password.
        """
        if self._scram is None:
            return self._response
        from scramp import ScramException

        if self._answered:
            self._check(challenge)
            return b""
        self._answered = True
        try:
            text = challenge.decode("utf-8")
            rounds = _ITERATIONS.search(text)
            if rounds is not None and int(rounds[1]) > MAX_ITERATIONS:
                raise self._failed(f"the server asks for {rounds[1]} iterations; expected at most {MAX_ITERATIONS}")
            self._scram.set_server_first(text)
            final: str = self._scram.get_client_final()
        except (ScramException, ValueError) as error:
            raise self._failed(f"invalid challenge from the server: {error}") from error
        return final.encode()

    def done(self, additional: bytes = b"") -> None:
        """Complete the exchange after the server accepted the login; `additional` is the data of its outcome."""
        if additional and not self._checked:
            self._check(additional)
        if not self._checked:
            raise self._failed("the server did not prove that it knows the password")

    def _check(self, proof: bytes) -> None:
        from scramp import ScramException

        try:
            self._scram.set_server_final(proof.decode("utf-8"))
        except (ScramException, ValueError) as error:
            raise self._failed(f"the server's proof of the password is wrong: {error}") from error
        self._checked = True

    def _failed(self, text: str) -> AuthenticationFailed:
        host, port = self._parameters.host, self._parameters.port
        return AuthenticationFailed(f"{host}:{port}: {self.mechanism}: {text}", host=host, port=port)
