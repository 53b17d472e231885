"""Two nodes under load whose connections are cut, delayed, stalled and repeated. `make bench-cluster` has long rounds."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from bench.cluster_faults import Load, disturb
from bench.cluster_proxies import CUT, DELAY, REPEAT, STALL, TlsProxyRig
from tests.support.postgres import require_postgres


@pytest.mark.slow
def test_no_message_is_lost_or_damaged_by_the_network() -> None:
    require_postgres()
    with ExitStack() as stack:
        rig = TlsProxyRig(stack, replicated=False, count=2)
        rig.start()
        load = Load(rig, seed=1, waiting=10, pause=0.05)

        async def rounds() -> None:
            await load.start()
            for kind in (CUT, DELAY, STALL, CUT, CUT):
                await disturb(load, kind, rig.stores)
            for kind in (CUT, DELAY, STALL, REPEAT):
                await disturb(load, kind, rig.links)
            await load.finish()

        asyncio.run(rounds())
        assert load.wrong == []
        assert all(lane.confirmed for lane in load.lanes)
        assert sum(proxy.accepted for proxy in rig.links) > len(load.clients)
