"""Termini of AMQP 1.0: addresses, sources, targets, and the state that outlives their links (messaging section 3.5)."""
