"""Sessions of AMQP 1.0: windows, dispositions, outcomes (transport section 2.5)."""
