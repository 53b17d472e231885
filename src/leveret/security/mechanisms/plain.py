"""PLAIN (RFC 4616): authorization identity, name and password, separated by a NUL byte."""

from __future__ import annotations

from leveret.security.mechanisms.base import Failure, Mechanism, NeedsPassword, Outcome, text


class Plain(Mechanism):
    """Section 2; acting as another user is not supported."""

    name = "PLAIN"
    speaks_first = True

    def step(self, response: bytes) -> Outcome:
        parts = response.split(b"\0")
        if len(parts) != 3:
            return Failure("PLAIN: expected three parts separated by a NUL byte")
        # Clients with a token as password may send no name.
        actor, name = parts[0], text(parts[1]) if parts[1] or not parts[2] else ""
        if name is None:
            return Failure("PLAIN: the name is empty or not UTF-8")
        if actor and actor != parts[1]:
            return Failure("PLAIN: acting as another user is not supported")
        return NeedsPassword(name, parts[2])
