"""Exchanges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from leveret.broker.arguments import EXCHANGE_ARGUMENTS
from leveret.management.http.control import Row
from leveret.management.http.lists import Source, columns_of, select_from, value_at
from leveret.management.http.measured import Rates, is_rate, rate_of
from leveret.management.http.objects import EXCHANGE_STATISTICS, CachedExchange
from leveret.management.http.request import NO_CONTENT, Answer, Request, declared, exchange_of
from leveret.management.http.statistics import deduplication, message_stats

_STATS: Final = ("publish_in", "publish_out")
# Keys of rows whose values are those of the broker's answer.
_DIRECT: Final = ("name", "vhost", "type", "durable", "auto_delete", "internal", "policy")


def exchange_row(item: Row, rates: Rates | None = None) -> Row:
    """Return an exchange as lists show it."""
    return {
        "arguments": item["arguments"],
        "auto_delete": item["auto_delete"],
        "durable": item["durable"],
        "internal": item["internal"],
        "message_stats": message_stats({name: item[name] for name in _STATS}, rates, _STATS),
        "name": item["name"],
        "policy": item["policy"],
        "type": item["type"],
        "user_who_performed_action": "",
        "vhost": item["vhost"],
        **deduplication(item),
    }


def _address(request: Request) -> Row:
    return {"vhost": request.vhost, "name": exchange_of(request.name)}


def _shown(request: Request, exchange: CachedExchange) -> Row:
    return exchange_row(exchange.item, Rates([exchange], EXCHANGE_STATISTICS, request.cache.tick, request.windows))


async def _list(request: Request, wanted: Callable[[Row], bool]) -> Answer:
    await request.cache.refresh()
    tick = request.cache.tick
    found = [exchange for exchange in request.cache.exchanges.values() if wanted(exchange.item)]
    request.check_listed_samples(len(found))

    def value(exchange: CachedExchange, keys: list[str]) -> Any:
        item = exchange.item
        if is_rate(keys):
            return rate_of(exchange, EXCHANGE_STATISTICS, keys, tick)
        if len(keys) == 2 and keys[0] == "message_stats":
            return item[keys[1]] if keys[1] in _STATS else None
        if len(keys) == 1 and keys[0] in _DIRECT:
            return item[keys[0]]
        return value_at(exchange_row(item), keys)

    def name(exchange: CachedExchange) -> str:
        return str(exchange.item["name"])

    def order(exchange: CachedExchange) -> tuple[str, str]:
        return exchange.item["vhost"], exchange.item["name"]

    source = Source(found, lambda exchange: _shown(request, exchange), name, value, order)
    return Answer(body=select_from(source, request.query))


async def list_all(request: Request) -> Answer:
    return await _list(request, lambda item: request.identity.sees(item["vhost"]))


async def list_in_vhost(request: Request) -> Answer:
    return await _list(request, lambda item: bool(item["vhost"] == request.vhost))


async def show(request: Request) -> Answer:
    """Return an exchange as it is now. The broker counts its messages each second, or when it is asked to."""
    item = await request.get("exchanges.show", _address(request))
    await request.cache.refresh_now()
    cached = request.cache.exchanges.get((request.vhost, item["name"]))
    row = exchange_row(item) if cached is None else _shown(request, cached)
    row |= {"incoming": [], "outgoing": []}
    return Answer(body=columns_of(row, request.query))


async def declare(request: Request) -> Answer:
    """Declare an exchange. The answer says whether it is new."""
    existing = await request.find("exchanges.show", _address(request))
    await request.change_in_vhost(
        "exchange.declare",
        {
            "name": exchange_of(request.name),
            "type": request.text("type", "direct"),
            "durable": request.flag("durable"),
            "auto_delete": request.flag("auto_delete"),
            "internal": request.flag("internal"),
            "arguments": request.arguments(),
        },
    )
    return declared(existing is None, EXCHANGE_ARGUMENTS, request.arguments())


async def delete(request: Request) -> Answer:
    await request.get("exchanges.show", _address(request))
    name = exchange_of(request.name)
    await request.change_in_vhost("exchange.delete", {"name": name, "if_unused": request.asks_for("if-unused")})
    return NO_CONTENT
