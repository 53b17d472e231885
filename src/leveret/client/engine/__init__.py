"""The protocol engine of the client, shared by the async and sync API. It has no sockets, clocks or threads.

A front end feeds received bytes to `ConnectionCore.receive` and writes what `ConnectionCore.to_send` returns. Operations
that take time return a waiter, which the front end awaits in its own way.
"""
