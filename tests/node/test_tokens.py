"""Logins that wait for the keys of an OAuth provider."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

pytest.importorskip("joserfc", reason="the extra leveret[oauth] is not installed")

from leveret.node.tokens import MAX_WAITING, TokenProvider
from leveret.security.accounts import TokenRefused
from leveret.security.oauth.keys import Keys
from leveret.security.oauth.tokens import UnknownKey


class SlowProvider:
    """A provider that answers when the test lets it."""

    def __init__(self) -> None:
        self.answers = threading.Event()

    def fetch(self) -> tuple[bytes, Keys]:
        self.answers.wait()
        return b"", Keys([])


def test_logins_of_one_address_have_half_of_the_places_to_wait() -> None:
    asyncio.run(_fill_the_places())


async def _fill_the_places() -> None:
    slow = SlowProvider()
    provider = TokenProvider(cast("Any", None), Keys([]), cast("Any", slow), 60)
    unknown = UnknownKey("no key 'x'")
    waiting: list[asyncio.Task[None]] = []

    async def wait(host: str, number: int) -> None:
        waiting.extend(asyncio.create_task(provider.wait_for_keys(unknown, host)) for _ in range(number))
        await asyncio.sleep(0)

    await wait("2001:db8::1", MAX_WAITING // 2)
    with pytest.raises(TokenRefused, match="from address '2001:db8::'"):
        await provider.wait_for_keys(unknown, "2001:db8::2")
    await wait("192.0.2.1", MAX_WAITING // 2)
    with pytest.raises(TokenRefused, match=f"{MAX_WAITING} logins already wait"):
        await provider.wait_for_keys(unknown, "192.0.2.2")
    slow.answers.set()
    await asyncio.gather(*waiting)
    with pytest.raises(UnknownKey):  # the keys were fetched recently
        await provider.wait_for_keys(unknown, "192.0.2.1")
