"""Policies and operator policies."""

from __future__ import annotations

from typing import Final

from leveret.management.http.control import Row
from leveret.management.http.errors import bad_request
from leveret.management.http.lists import columns_of, select
from leveret.management.http.request import CREATED, NO_CONTENT, Answer, Request


class Policies:
    """The handlers of one kind of policies.

    Args:
        calls: The prefix of the operations.
    """

    def __init__(self, calls: str) -> None:
        self._calls = calls

    async def list_all(self, request: Request) -> Answer:
        found = await request.control.list(f"{self._calls}.list")
        return self._listed(request, [item for item in found if request.identity.sees(item["vhost"])])

    async def list_in_vhost(self, request: Request) -> Answer:
        return self._listed(request, await request.control.call(f"{self._calls}.list", {"vhost": request.vhost}))

    def _listed(self, request: Request, found: list[Row]) -> Answer:
        return Answer(body=select(sorted(found, key=lambda item: int(item["priority"])), request.query, is_ordered=True))

    async def show(self, request: Request) -> Answer:
        return Answer(body=columns_of(await self._get(request), request.query))

    async def put(self, request: Request) -> Answer:
        """Add or replace a policy: `pattern` and `definition` are required. Returns when it is applied."""
        _, definition = request.required("pattern", "definition")
        if not isinstance(definition, dict):
            raise bad_request("invalid value of 'definition'; expected an object")
        stored = await request.change(
            f"{self._calls}.set",
            {
                "vhost": request.vhost,
                "name": request.name,
                "pattern": request.text("pattern"),
                "definition": definition,
                "priority": request.integer("priority"),
                "apply-to": request.text("apply-to", "all"),
            },
        )
        return CREATED if stored["created"] else NO_CONTENT

    async def delete(self, request: Request) -> Answer:
        await self._get(request)
        await request.change(f"{self._calls}.delete", {"vhost": request.vhost, "name": request.name})
        return NO_CONTENT

    async def _get(self, request: Request) -> Row:
        return await request.get(f"{self._calls}.show", {"vhost": request.vhost, "name": request.name})


POLICIES: Final = Policies("policies")
OPERATOR_POLICIES: Final = Policies("operator_policies")
