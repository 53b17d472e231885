"""Links of AMQP 1.0: attach, transfers in both directions, resuming deliveries (transport section 2.6)."""
