"""The other nodes that this one does not reach, though they show signs of life in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from leveret.cluster.links import NodeClient, NodeInfo

# Seconds between two probes of the other nodes.
PROBE_INTERVAL: Final = 3.0


class Reach:
    """Probes the other nodes by connecting to them, as the node does for clients whose shard is there.

    Args:
        client: The connections to other nodes.
        others: Returns the other nodes that are live and have started.

    Attributes:
        unreachable: The names of those that did not answer the last probe.
    """

    def __init__(self, client: NodeClient, others: Callable[[], list[NodeInfo]]) -> None:
        self.unreachable: list[str] = []
        self._client = client
        self._others = others
        self._probing = asyncio.create_task(self._keep_probing())

    def stop(self) -> None:
        """Stop probing."""
        self._probing.cancel()

    async def _keep_probing(self) -> None:
        while True:
            nodes = self._others()
            answers = await asyncio.gather(*(self._client.reaches(node) for node in nodes))
            self.unreachable = [node.name for node, is_reached in zip(nodes, answers, strict=True) if not is_reached]
            await asyncio.sleep(PROBE_INTERVAL)
