"""The dynamic shovels of the broker to migrate from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from leveret.broker.errors import PreconditionFailed
from leveret.broker.parameters import FEDERATION, SHOVEL
from leveret.cli.migration.plan import Finding
from leveret.management.definitions.document import Document, value_of
from leveret.shovel.definition import NEVER, End, read_definition
from leveret.shovel.uris import has_credentials, is_local, read_uri

_MOVED: Final = "moved by --shovels: set here, and deleted at the source"


@dataclass(frozen=True, slots=True)
class DynamicShovel:
    """A shovel of a definitions file.

    Attributes:
        item: Its parameter in the file.
        reason: Why it is not migrated; "" if it is.
        warnings: What to check before it is.
    """

    item: object
    reason: str
    warnings: tuple[str, ...] = ()

    @property
    def finding(self) -> Finding:
        """The shovel in the plan."""
        item = self.item
        return Finding(
            object=f"shovel '{value_of(item, 'name')}' in vhost '{value_of(item, 'vhost')}'",
            effect=f"not migrated: {self.reason}" if self.reason else "; ".join((_MOVED, *self.warnings)),
        )


class DynamicShovels:
    """The dynamic shovels of a definitions file, which run on the source.

    Args:
        document: The file.
        host: The host of the source.
    """

    def __init__(self, document: Document, host: str) -> None:
        self._document = document
        self._host = host
        self._users = {value_of(item, "name") for item in document.of("users")}
        self._found = [self._read(item) for item in document.of("parameters") if value_of(item, "component") == SHOVEL]

    def findings(self) -> Iterator[Finding]:
        """Yield each shovel with what happens to it."""
        return (shovel.finding for shovel in self._found)

    def migrated(self) -> Document:
        """Return the definitions of the shovels that are migrated."""
        return Document({"parameters": [shovel.item for shovel in self._found if not shovel.reason]})

    def others(self) -> Document:
        """Return the other definitions of the file, without the upstreams of a federation."""
        kept = [
            item for item in self._document.of("parameters") if value_of(item, "component") not in (SHOVEL, *FEDERATION)
        ]
        return Document({**self._document.sections, "parameters": kept})

    def _read(self, item: object) -> DynamicShovel:
        try:
            definition = read_definition(str(value_of(item, "name")), value_of(item, "value"))
        except PreconditionFailed as error:
            return DynamicShovel(item, str(error))
        if definition.delete_after != NEVER:
            return DynamicShovel(item, "it ends when it has moved its messages")
        ends = (("source", definition.source), ("destination", definition.destination))
        warnings = dict.fromkeys(text for name, end in ends for text in self._warnings(name, end))
        return DynamicShovel(item, "", tuple(warnings))

    def _warnings(self, name: str, end: End) -> Iterator[str]:
        for uri in end.uris:
            parameters = read_uri(uri, end.protocol, "")
            has_user = has_credentials(uri, parameters)
            if is_local(uri):
                if has_user and parameters.user not in self._users:
                    yield f"its {name} logs in as user '{parameters.user}', which the source does not have"
                continue
            if not has_user:
                yield f"its {name} has no user for '{parameters.host}', without which it does not run"
            if parameters.host == self._host:
                yield f"its {name} is the broker to migrate from"
