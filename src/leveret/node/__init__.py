"""Composition of a broker from a configuration, standalone or embedded in a program.

`leveret serve` and `leveret.Broker` use this package. It does not change process-wide state, such as signal handlers,
logging, the garbage collector and resource limits.
"""
