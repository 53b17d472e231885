"""Message filters.

`jms_selector` compiles JMS message selectors, `sql_filter` compiles `amqp:sql-filter`, and `properties_filter` and
`application_properties_filter` compile the filters of the same names. Each returns a `Filter` or raises `SelectorError`.
A filter reads a message through a `MessageView`.
"""

from __future__ import annotations

from leveret.selectors.compilation import jms_selector, sql_filter
from leveret.selectors.errors import DEFAULT_LIMITS, EntryError, Limits, SelectorError
from leveret.selectors.evaluate import Selector
from leveret.selectors.fields import FieldsFilter, application_properties_filter, properties_filter
from leveret.selectors.message import (
    APPLICATION_PROPERTIES,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Filter,
    MessageView,
)

__all__ = [
    "APPLICATION_PROPERTIES",
    "DEFAULT_LIMITS",
    "HEADER",
    "MESSAGE_ANNOTATIONS",
    "PROPERTIES",
    "EntryError",
    "FieldsFilter",
    "Filter",
    "Limits",
    "MessageView",
    "Selector",
    "SelectorError",
    "application_properties_filter",
    "jms_selector",
    "properties_filter",
    "sql_filter",
]
