"""The client's engine: what the asyncio and the blocking face share. No sockets, no clocks, no threads.

A face feeds it octets (`ConnectionCore.receive`) and writes what `ConnectionCore.to_send` holds; everything that takes
time comes back as a waiter, which the face awaits in its own way.
"""
