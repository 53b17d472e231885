"""Leveret: a durable message broker that speaks AMQP, and a client library."""

# Import nothing before this, not even __future__: the working directory could contain a file of that name.
from leveret._isolation import is_started_as_module, remove_working_directory

if is_started_as_module():
    remove_working_directory()

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leveret._build import __version__ as __version__
from leveret._build import build_info as build_info
from leveret._compiled import BuildInfo as BuildInfo

if TYPE_CHECKING:
    from leveret import aio as aio
    from leveret import client as client
    from leveret import sync as sync
    from leveret.client._async.connection import connect as connect
    from leveret.client.errors import Error as Error
    from leveret.client.message import Message as Message
    from leveret.client.properties import Properties as Properties
    from leveret.config.errors import ConfigError as ConfigError
    from leveret.node.embedded import AsyncBroker as AsyncBroker
    from leveret.node.embedded import Broker as Broker
    from leveret.node.embedded import SyncBroker as SyncBroker
    from leveret.node.errors import CallRefused as CallRefused
    from leveret.node.errors import StartFailed as StartFailed

# Names that are imported on first use: a broker needs no client, and a client no broker. "" is the module itself.
_LAZY = {
    "AsyncBroker": ("leveret.node.embedded", "AsyncBroker"),
    "Broker": ("leveret.node.embedded", "Broker"),
    "CallRefused": ("leveret.node.errors", "CallRefused"),
    "ConfigError": ("leveret.config.errors", "ConfigError"),
    "Error": ("leveret.client.errors", "Error"),
    "Message": ("leveret.client.message", "Message"),
    "Properties": ("leveret.client.properties", "Properties"),
    "StartFailed": ("leveret.node.errors", "StartFailed"),
    "SyncBroker": ("leveret.node.embedded", "SyncBroker"),
    "aio": ("leveret.aio", ""),
    "client": ("leveret.client", ""),
    "connect": ("leveret.client._async.connection", "connect"),
    "sync": ("leveret.sync", ""),
}
__all__ = [
    "AsyncBroker",
    "Broker",
    "BuildInfo",
    "CallRefused",
    "ConfigError",
    "Error",
    "Message",
    "Properties",
    "StartFailed",
    "SyncBroker",
    "__version__",
    "aio",
    "build_info",
    "client",
    "connect",
    "sync",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if not TYPE_CHECKING:
    # Hidden from type checkers, so that they report names that are not imported above.
    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'leveret' has no attribute '{name}'")
        module, attribute = _LAZY[name]
        found = import_module(module)
        return getattr(found, attribute) if attribute else found
