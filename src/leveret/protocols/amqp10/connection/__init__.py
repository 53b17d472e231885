"""Connections of AMQP 1.0: SASL, open, idle time-outs, close (transport sections 2.2 to 2.4)."""
