"""The client's engine for AMQP 1.0: sessions and their links."""
