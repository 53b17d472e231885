"""ANONYMOUS (RFC 4505): all clients act as one configured user. The trace information of the response is not used."""

from __future__ import annotations

from leveret.security.mechanisms.base import Context, Failure, Mechanism, Outcome, Success


class Anonymous(Mechanism):
    name = "ANONYMOUS"

    @classmethod
    def available(cls, context: Context) -> bool:
        return context.anonymous_user is not None

    def step(self, response: bytes) -> Outcome:
        user = self.context.anonymous_user
        return Success(user) if user is not None else Failure("ANONYMOUS: auth.anonymous_user is not set")
