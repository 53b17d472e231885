"""Exchanges."""

from __future__ import annotations

from leveret.management.http.control import Row
from leveret.management.http.lists import columns_of, select
from leveret.management.http.measured import MAX_FEW_SAMPLES, Rates
from leveret.management.http.objects import EXCHANGE_STATISTICS, CachedExchange
from leveret.management.http.request import CREATED, NO_CONTENT, Answer, Request, exchange_of
from leveret.management.http.statistics import message_stats

_STATS = ("publish_in", "publish_out")


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
    }


def _address(request: Request) -> Row:
    return {"vhost": request.vhost, "name": exchange_of(request.name)}


def _shown(request: Request, exchange: CachedExchange) -> Row:
    return exchange_row(exchange.item, Rates([exchange], EXCHANGE_STATISTICS, request.cache.tick, request.windows))


async def rows(request: Request) -> list[Row]:
    """Return the exchanges that the user sees."""
    await request.cache.refresh()
    found = request.cache.exchanges.values()
    request.check_samples(len(found), MAX_FEW_SAMPLES)
    return [_shown(request, exchange) for exchange in found if request.identity.sees(exchange.item["vhost"])]


async def list_all(request: Request) -> Answer:
    return Answer(body=select(await rows(request), request.query))


async def list_in_vhost(request: Request) -> Answer:
    found = [row for row in await rows(request) if row["vhost"] == request.vhost]
    return Answer(body=select(found, request.query))


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
    return CREATED if existing is None else NO_CONTENT


async def delete(request: Request) -> Answer:
    await request.get("exchanges.show", _address(request))
    name = exchange_of(request.name)
    await request.change_in_vhost("exchange.delete", {"name": name, "if_unused": request.asks_for("if-unused")})
    return NO_CONTENT
