"""A shop. Importing it loads the Celery application, so that `shared_task` uses it."""

from shop.celery import app as celery_app

__all__ = ["celery_app"]
