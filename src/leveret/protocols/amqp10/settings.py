"""Settings of AMQP 1.0."""

from __future__ import annotations


class Amqp10Settings:
    """Settings of AMQP 1.0, in bytes and seconds.

    Attributes:
        anonymous_user: user of clients without credentials; "" refuses them.
        auto_create: whether a link to an unknown name creates a durable queue.
        max_frame_size: maximum size of frames from clients.
        sessions: maximum number of sessions of a connection.
        links: maximum number of links of a session.
        connection_links: maximum number of links of a connection.
        unsettled: maximum number of unsettled deliveries to a connection.
        redirect: whether clients are redirected to the node that owns their vhost.
        idle_timeout: time after which a silent client is disconnected; 0 disables it.
        link_credit: maximum credit of a sender.
        transaction_timeout: maximum duration of a transaction; 0 is no limit.
        kept_links: maximum number of links of a user that outlive their sessions.
        product: product in the properties of open.
        version: version in the properties of open.
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
        redirect: bool = False,
    ) -> None:
        self.redirect = redirect
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
