"""The management node: requests on a link pair that declare, bind, purge and delete (HTTP over AMQP, as in RabbitMQ 4).

`router` is the entry point; each subject has a module with its operations.
"""
