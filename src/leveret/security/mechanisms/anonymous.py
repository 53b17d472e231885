"""ANONYMOUS (RFC 4505): everybody is one configured user. The trace information of the response is not used."""

from __future__ import annotations

from leveret.security.mechanisms.base import Context, Failure, Mechanism, Outcome, Success


class Anonymous(Mechanism):
    name = "ANONYMOUS"

    @classmethod
    def available(cls, context: Context) -> bool:
        return context.anonymous_user is not None

    def step(self, response: bytes) -> Outcome:
        user = self.context.anonymous_user
        return Success(user) if user is not None else Failure("ANONYMOUS: no user is configured for it")
