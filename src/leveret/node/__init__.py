"""Composes a broker from a configuration, and runs it alone or inside a program.

`leveret serve` and `leveret.Broker` use it. Nothing here changes process-wide state: signal handlers, logging, the garbage
collector, resource limits.
"""
