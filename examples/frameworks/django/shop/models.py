from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100)
    attempts = models.IntegerField(default=0)
    shipped = models.BooleanField(default=False)
