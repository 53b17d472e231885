"""`leveret bench`: load for any AMQP 0-9-1 broker, and what it does under it."""
