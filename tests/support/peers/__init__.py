"""Raw peers: clients that show each frame or method, hide nothing and retry nothing.

Blocking, and free to send anything, valid or not: `amqp09` with a codec of its own (`codec09`), `amqp091` with pamqp,
`amqp10` with the project's codec, `rude` for the bytes of 0-9-1. Asyncio, for many connections at a time: `async_amqp091`.
With the project's engine, for uploads and resumed channels: `engine_amqp09`.
"""
