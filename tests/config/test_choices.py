"""Choices of settings are the names in the registries, in the same order."""

from __future__ import annotations

import typing

import click
import pytest

from leveret.broker.exchanges.registry import TYPES
from leveret.cli.bench import bench
from leveret.cli.exchanges import add
from leveret.config.errors import ConfigError
from leveret.config.load import combine_config
from leveret.config.model import Engine, Mechanism
from leveret.security.mechanisms.registry import MECHANISMS
from leveret.storage.registry import ENGINES


def option(command: click.Command, name: str) -> click.Option:
    [found] = [one for one in command.params if isinstance(one, click.Option) and one.name == name]
    return found


def test_mechanisms() -> None:
    assert typing.get_args(Mechanism) == tuple(MECHANISMS)


def test_engines() -> None:
    assert typing.get_args(Engine) == tuple(ENGINES)


def test_an_empty_list_of_mechanisms_is_refused_with_their_names() -> None:
    with pytest.raises(ConfigError, match=f"expected at least one of {', '.join(MECHANISMS)}$"):
        combine_config(("test", {"auth": {"mechanisms": []}}))


def test_the_exchange_types_of_the_command_line() -> None:
    assert option(add, "type_name").help == f"Exchange type: {', '.join(TYPES)}."
    choice = option(bench, "exchange").type
    assert isinstance(choice, click.Choice) and tuple(choice.choices) == ("default", *TYPES)
