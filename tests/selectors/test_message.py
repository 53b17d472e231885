"""Views of messages."""

from __future__ import annotations

import gc
import time
import weakref

from leveret.selectors import MessageView, sql_filter
from tests.selectors.support import View


class Bare(MessageView):
    def get(self, section: int, name: str) -> object:
        return None


def test_a_weak_reference_to_a_view_is_cleared() -> None:
    view = View(a=1)
    reference = weakref.ref(view)
    del view
    gc.collect()
    assert reference() is None


def test_now_is_the_time_of_the_clock_in_milliseconds() -> None:
    before = time.time() * 1000
    now = Bare().now()
    assert int(before) <= now <= time.time() * 1000 + 1
    assert sql_filter("UTC() >= 1700000000000").matches(Bare())


def test_one_filter_serves_one_view_after_another() -> None:
    view = View(a=1)
    found = sql_filter("a = 1")
    assert found.matches(view)
    assert not found.matches(Bare())
    assert found.matches(view)
