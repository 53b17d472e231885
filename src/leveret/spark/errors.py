"""What goes wrong between Spark and a broker, each a `SparkError` whose text names the option, offset or row."""

from __future__ import annotations


class SparkError(Exception):
    """Any of them."""


class OptionError(SparkError, ValueError):
    """An option that is not known, missing, or has a value of no use."""


class BrokerUnreachable(SparkError):
    """No connection to the broker within the time that was given."""


class RequestRefused(SparkError):
    """The broker answered a request with an error.

    operation   of the request, such as "stream.describe"
    condition   by name, such as "not-found"
    """

    def __init__(self, operation: str, condition: str, message: str) -> None:
        super().__init__(operation, condition, message)
        self.operation = operation
        self.condition = condition
        self.message = message

    def __str__(self) -> str:
        return f"{self.operation}: {self.condition}: {self.message}"


class OffsetError(SparkError):
    """Offsets that do not fit the stream: out of range, of another stream, or of one that went back."""


class DataLoss(SparkError):
    """Messages that were to be read are not there any more."""


class ReadFailed(SparkError):
    """A range of messages could not be read as a whole: the first, the last or the count is not what it has to be."""
