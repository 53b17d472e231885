"""The configuration of AMQP 1.0."""

from __future__ import annotations


class Amqp10Settings:
    """What the configuration decides for AMQP 1.0. Bytes and seconds.

    anonymous_user  who clients without credentials act as, "" for none
    auto_create     whether a link to an unknown name creates a durable queue
    sessions, links  the most of a connection, and of a session
    connection_links, unsettled  the most links of a connection, and deliveries to it that are not settled
    idle_timeout    how long a client may send nothing at all, 0 for ever
    link_credit     messages that a sender may send ahead
    transaction_timeout  how long a transaction may take, 0 for ever
    kept_links      links of a user that may outlive their sessions
    product, version  what open says of the broker
    """

    def __init__(
        self,
        *,
        anonymous_user: str = "guest",
        auto_create: bool = True,
        max_frame_size: int = 131072,
        sessions: int = 256,
        links: int = 1024,
        idle_timeout: float = 120.0,
        link_credit: int = 1000,
        transaction_timeout: float = 0.0,
        kept_links: int = 10_000,
        product: str = "RabbitMQ",
        version: str = "4.3.0",
        connection_links: int = 4096,
        unsettled: int = 65_536,
    ) -> None:
        self.anonymous_user = anonymous_user
        self.auto_create = auto_create
        self.max_frame_size = max_frame_size
        self.sessions = sessions
        self.links = links
        self.connection_links = connection_links
        self.unsettled = unsettled
        self.idle_timeout = idle_timeout
        self.link_credit = link_credit
        self.transaction_timeout = transaction_timeout
        self.kept_links = kept_links
        self.product = product
        self.version = version
