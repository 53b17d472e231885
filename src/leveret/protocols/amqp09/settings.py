"""The configuration of AMQP 0-9."""

from __future__ import annotations

from typing import Final

# The setting `amqp09.redirect` for the node that owns the vhost.
OWNER: Final = "owner"


class Amqp09Settings:
    """Settings of AMQP 0-9.

    Attributes:
        known_hosts: field of connection.open-ok, for clients that reconnect.
        redirect: host for connection.redirect, sent to clients that do not insist; "" for none.
        redirect_to_owner: whether clients that do not insist are redirected to the node that owns the vhost.
        resume_timeout: seconds for which interrupted channels can be resumed; 0 disables it.
        resume_channels: maximum number of interrupted channels of a user.
    """

    def __init__(
        self,
        *,
        known_hosts: str = "",
        redirect: str = "",
        redirect_to_owner: bool = False,
        resume_timeout: float = 0.0,
        resume_channels: int = 100,
    ) -> None:
        self.known_hosts = known_hosts
        self.redirect = redirect
        self.redirect_to_owner = redirect_to_owner
        self.resume_timeout = resume_timeout
        self.resume_channels = resume_channels
