"""One broker in one process: put together from a configuration, made to listen, run on its own or inside a program.

`leveret serve` and `leveret.Broker` both stand on this. Nothing here touches what belongs to the whole process: signals,
logging, the garbage collector, limits.
"""
