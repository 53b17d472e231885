"""The management node: requests of a link pair that declare, bind, purge and delete (HTTP over AMQP, as RabbitMQ 4 has
it). `router` is the entry; each subject has a file of its own, with the table of what it answers.
"""
