"""Errors of the Spark integration. Each message names the option, offset or row."""

from __future__ import annotations


class SparkError(Exception):
    """Base class of the errors of the Spark integration."""


class OptionError(SparkError, ValueError):
    """An option is unknown, missing or invalid."""


class BrokerUnreachable(SparkError):
    """The broker could not be reached in time."""


class ConnectionRefused(BrokerUnreachable):
    """The broker refused the login, the vhost or TLS, and would refuse them again."""


class RequestRefused(SparkError):
    """The broker replied to a request with an error.

    Attributes:
        operation: Name of the request, such as "stream.describe".
        condition: Name of the error, such as "not-found".
    """

    def __init__(self, operation: str, condition: str, message: str) -> None:
        super().__init__(operation, condition, message)
        self.operation = operation
        self.condition = condition
        self.message = message

    def __str__(self) -> str:
        return f"{self.operation}: {self.condition}: {self.message}"


class OffsetError(SparkError):
    """Offsets do not fit the stream: out of range, of another stream, or beyond the end of one that lost data."""


class DataLoss(SparkError):
    """Messages were removed before they were read."""


class ReadFailed(SparkError):
    """A range of messages could not be read completely."""
