"""The client's sans-I/O protocol engine, shared by the async and the sync API. It has no sockets, clocks or threads.

A front end feeds received bytes to `ConnectionCore.receive` and writes the result of `ConnectionCore.to_send` to the
socket. Operations that wait for the server return a waiter, which the front end awaits in its own way.
"""
