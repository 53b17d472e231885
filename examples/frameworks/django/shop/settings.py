"""Settings of an example: replace the key, the debug mode and the database in production."""

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "for-tests-only")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("DATABASE", "shop.sqlite3")}}
USE_TZ = True

CELERY_BROKER_URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672//")
CELERY_TASK_DEFAULT_QUEUE = "django-jobs"
# The database has the results of this shop.
CELERY_TASK_IGNORE_RESULT = True
# Acknowledge after the task, so that another worker runs it if this one dies.
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# `delay` returns when the task is on disk. Without a broker, it raises after a second.
CELERY_BROKER_TRANSPORT_OPTIONS = {"confirm_publish": True}
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 3, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.5}
