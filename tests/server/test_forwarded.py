"""The clients that proxies name."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from leveret.server.forwarded import forwarded_client

PROXIES = tuple(map(ip_network, ("127.0.0.1", "10.1.0.0/16", "2001:db8::/32")))


@pytest.mark.parametrize(
    ("values", "client"),
    [
        ((), None),
        ((" , ",), None),
        (("203.0.113.7",), ("203.0.113.7", 0)),
        (("203.0.113.7:4711",), ("203.0.113.7", 4711)),
        (("2001:4860::1",), ("2001:4860::1", 0)),
        (("[2001:4860:0::1]",), ("2001:4860::1", 0)),
        (("[2001:4860::1]:443",), ("2001:4860::1", 443)),
        (("::ffff:203.0.113.7",), ("203.0.113.7", 0)),
        # The addresses that the client has sent precede the address that the first proxy has appended.
        (("127.0.0.1, nonsense, 203.0.113.7, 10.1.2.3, 2001:db8::1",), ("203.0.113.7", 0)),
        (("127.0.0.1", "203.0.113.7, 10.1.2.3", "::ffff:10.1.2.4"), ("203.0.113.7", 0)),
        (("10.2.0.1, 10.1.2.3",), ("10.2.0.1", 0)),
        # A client that is a proxy itself.
        (("10.1.0.1:9, 10.1.0.2",), ("10.1.0.1", 9)),
    ],
)
@pytest.mark.parametrize("peer", ["127.0.0.1", "::ffff:10.1.2.3", "2001:db8::7%eth0"])
def test_a_trusted_proxy(values: tuple[str, ...], client: tuple[str, int] | None, peer: str) -> None:
    assert forwarded_client(values, peer, PROXIES) == client


@pytest.mark.parametrize("peer", ["127.0.0.2", "10.2.0.1", "2001:db9::1"])
def test_another_peer_is_not_believed(peer: str) -> None:
    assert forwarded_client(["203.0.113.7"], peer, PROXIES) is None
    assert forwarded_client(["nonsense"], peer, PROXIES) is None


def test_without_trusted_proxies() -> None:
    assert forwarded_client(["203.0.113.7"], "127.0.0.1", ()) is None


@pytest.mark.parametrize(
    "value",
    ["unknown", "203.0.113.7, _hidden", "203.0.113", "203.0.113.7:", "203.0.113.7:65536", "203.0.113.7:²", "[::1]x"],
)
def test_something_else_than_an_address(value: str) -> None:
    with pytest.raises(ValueError, match="expected an IP address, with or without a port"):
        forwarded_client([value], "127.0.0.1", PROXIES)
