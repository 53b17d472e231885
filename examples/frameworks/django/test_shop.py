"""The views in the process of pytest, and the tasks in a worker process, with one database."""

from __future__ import annotations

import time

import pytest

TIMEOUT = 60.0
WORKER = ("celery", "-A", "shop", "worker", "--pool", "solo", "--loglevel", "INFO")


@pytest.fixture(scope="module")
def django(url, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMQP_URL", url)
        patch.setenv("DATABASE", str(tmp_path_factory.mktemp("django") / "shop.sqlite3"))
        patch.setenv("DJANGO_SETTINGS_MODULE", "shop.settings")
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        yield django


@pytest.fixture(scope="module")
def client(django):
    from django.test import Client

    return Client()


@pytest.fixture(scope="module")
def worker(django, start):
    process = start(*WORKER)
    process.wait_for(" ready.")
    return process


def place(client, item: str) -> int:
    answer = client.post("/orders", {"item": item}, content_type="application/json")
    assert answer.status_code == 202
    return answer.json()["id"]


def wait_for(client, number: int, expected: dict) -> None:
    deadline = time.monotonic() + TIMEOUT
    while client.get(f"/orders/{number}").json() != expected:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_order_is_shipped(client, worker):
    wait_for(client, place(client, "tea"), {"shipped": True, "attempts": 1})


def test_a_task_is_retried(client, worker):
    wait_for(client, place(client, "fragile"), {"shipped": True, "attempts": 2})


def test_a_task_of_a_transaction_that_fails_is_not_sent(client, worker):
    from django.db import transaction
    from shop.models import Order
    from shop.tasks import ship

    with pytest.raises(RuntimeError), transaction.atomic():
        ship.delay_on_commit(Order.objects.create(item="never").pk)
        raise RuntimeError("rolled back")
    wait_for(client, place(client, "tea"), {"shipped": True, "attempts": 1})
    assert "DoesNotExist" not in worker.log.read_text()


def test_orders_wait_for_the_next_worker(client, worker, start):
    worker.stop()
    number = place(client, "coffee")
    start(*WORKER)
    wait_for(client, number, {"shipped": True, "attempts": 1})


def test_under_the_development_server(django, start):
    start("manage", "runserver", "--noreload", "0").wait_for("Quit the server")
