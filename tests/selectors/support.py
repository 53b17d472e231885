"""Messages built from dictionaries."""

from __future__ import annotations

from leveret.selectors import APPLICATION_PROPERTIES, HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, MessageView

NOW = 1_700_000_000_000


class View(MessageView):
    """Application properties by keyword, the other sections as dictionaries."""

    def __init__(
        self,
        application: dict[str, object] | None = None,
        /,
        *,
        header: dict[str, object] | None = None,
        annotations: dict[str, object] | None = None,
        properties: dict[str, object] | None = None,
        **more: object,
    ) -> None:
        super().__init__()
        self.sections = {
            HEADER: header or {},
            MESSAGE_ANNOTATIONS: annotations or {},
            PROPERTIES: properties or {},
            APPLICATION_PROPERTIES: {**(application or {}), **more},
        }

    def get(self, section: int, name: str) -> object:
        return self.sections[section].get(name)

    def now(self) -> int:
        return NOW
