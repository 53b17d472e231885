import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import ship


@csrf_exempt
@require_POST
def place(request: HttpRequest) -> JsonResponse:
    """Store an order, and send its task after the commit, so that the worker finds the order."""
    with transaction.atomic():
        order = Order.objects.create(item=json.loads(request.body)["item"])
        ship.delay_on_commit(order.pk)
    return JsonResponse({"id": order.pk}, status=202)


def show(request: HttpRequest, number: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=number)
    return JsonResponse({"shipped": order.shipped, "attempts": order.attempts})
