"""AMQP 0-9-1 with RabbitMQ's extensions."""
