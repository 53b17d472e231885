"""Sessions of AMQP 1.0: windows and dispositions on the wire, and operations of the application."""
