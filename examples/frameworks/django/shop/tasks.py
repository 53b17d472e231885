from celery import shared_task
from django.db import transaction

from shop.models import Order


@shared_task(bind=True, autoretry_for=(ConnectionError,), max_retries=3, default_retry_delay=0.1)
def ship(self, number: int) -> None:
    """Ship an order. A task may run twice, so it does nothing for an order that is shipped."""
    with transaction.atomic():
        order = Order.objects.select_for_update().get(pk=number)
        if order.shipped:
            return
        order.attempts += 1
        order.save()
    if order.item == "fragile" and order.attempts < 2:
        raise ConnectionError("the carrier does not answer")
    Order.objects.filter(pk=number).update(shipped=True)
