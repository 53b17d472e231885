"""Requests at the front, and the requests to shards that are made of them."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from leveret.management.control_socket import VERSION, Call
from leveret.management.operations.operation import Principal
from leveret.security.accounts import ExportedAccount

# The keys by which a request for a shard has the account of a token, and says that the front records its changes.
ACCOUNT: Final = "account"
AUDIT: Final = "audit"
# The key by which a caller accepts a list without the objects of shards that are not ready.
PARTIAL: Final = "partial"


def encode_request(request: dict[str, Any]) -> bytes:
    """Encode a request as a line."""
    try:
        return msgspec.json.encode(request) + b"\n"
    except UnicodeEncodeError:  # a user of the system whose name is not UTF-8
        return json.dumps(request).encode() + b"\n"


class FrontCall:
    """A call with its caller.

    Args:
        call: The call.
        principal: The caller.
        account: The account of a login by token; None without a token.

    Attributes:
        name: The name of the operation.
        arguments: The fields of the request, before they are checked.
        fields: The checked fields; set before the operation is executed, except one inside a vhost.
    """

    def __init__(self, call: Call, principal: Principal, account: ExportedAccount | None) -> None:
        self.name = call.name
        self.arguments = call.arguments
        self.principal = principal
        self.fields: Any = None
        self._call = call
        self._account = account

    def line(self, *, is_audited: bool = True) -> bytes:
        """Return the request for a shard. Values of clients are not decoded, and so stay exactly as they are."""
        added = self._added(is_audited)
        line = self._call.line.strip()
        return encode_request(added)[:-2] + b"," + line[1:] + b"\n"

    def derived(self, name: str, arguments: Any, *, is_audited: bool = True) -> bytes:
        """Return a request for a shard with another operation or other fields, of the same caller."""
        known = {key: value for key, value in self._call.request.items() if key in ("as", "origin", "vhost")}
        return encode_request({**self._added(is_audited), **known, "v": VERSION, "call": name, "arguments": arguments})

    @property
    def is_partial(self) -> bool:
        """Whether the caller accepts a list without the objects of shards that are not ready."""
        return self._call.request.get(PARTIAL) is True

    @property
    def original(self) -> bytes:
        """The line of the request."""
        return self._call.line

    def _added(self, is_audited: bool) -> dict[str, Any]:
        """Return what a request for a shard has in addition. The origin of the request itself has precedence."""
        user, source = self._call.origin
        added: dict[str, Any] = {"origin": {"user": user, "source": source}}
        if self._account is not None:
            added[ACCOUNT] = self._account
        if not is_audited:
            added[AUDIT] = False
        return added
