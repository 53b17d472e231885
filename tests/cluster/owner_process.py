"""A node in a process of its own, which owns the vhosts of `joined`. Prints its address, and runs until its input ends."""

from __future__ import annotations

import sys

from leveret.cluster.links import NodeServer
from tests.cluster.joined import joined
from tests.cluster.linked import AMQP10, OWNER, SECRET


def main() -> None:
    with joined(amqp10=AMQP10) as cluster:
        server = NodeServer(SECRET, OWNER, lambda shard, epoch: list(cluster.shards.values())[shard], lambda shard: None)
        print(cluster.run(server.start("127.0.0.1", 0)), flush=True)
        sys.stdin.read()
        cluster.run(server.stop())


if __name__ == "__main__":
    main()
