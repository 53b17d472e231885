"""The worker of Celery's own pytest plugin, in a thread."""

from __future__ import annotations

import pytest

pytest_plugins = ("celery.contrib.pytest",)


@pytest.fixture(scope="session")
def celery_config(leveret_broker):
    return {"broker_url": leveret_broker.url, "result_backend": "rpc://"}


def test_a_result(celery_app, celery_worker):
    @celery_app.task
    def total(prices):
        return sum(prices)

    celery_worker.reload()
    assert total.delay([3, 4]).get(timeout=60) == 7
