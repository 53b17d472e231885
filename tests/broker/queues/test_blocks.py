"""A sorted list of entries in blocks behaves like a list."""

from __future__ import annotations

import random
from bisect import bisect_right

from leveret.broker.message import Entry
from leveret.broker.queues.blocks import MAX_BLOCK, Blocks
from leveret.broker.queues.classic.backlog import SEQ
from tests.broker.support import World


def test_blocks_agree_with_a_sorted_list(world: World) -> None:
    chance = random.Random(1)
    queue = world.queue()
    blocks = Blocks(SEQ)
    known: list[Entry] = []
    for seq in chance.sample(range(20 * MAX_BLOCK), 6 * MAX_BLOCK):
        entry = Entry(queue, world.message(), seq)
        blocks.add(entry)
        known.insert(bisect_right(known, seq, key=SEQ), entry)
        if not chance.randrange(3):
            index = chance.randrange(-len(known), len(known))
            assert blocks[index] is known[index]
            del blocks[index], known[index]
        if not chance.randrange(50):
            index = chance.randrange(len(known))
            assert blocks[index] is known[index]
            assert bisect_right(blocks, seq, key=SEQ) == bisect_right(known, seq, key=SEQ)
    assert len(blocks.blocks) > 3
    assert list(blocks) == known
    assert [blocks[index] for index in range(len(blocks))] == known
