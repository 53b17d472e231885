"""The configuration of AMQP 0-9."""

from __future__ import annotations


class Amqp09Settings:
    """What the configuration decides for AMQP 0-9.

    known_hosts  of connection.open-ok, for clients that reconnect
    redirect     where clients are sent that do not insist, "" for nowhere
    resume_timeout  seconds that interrupted channels wait for channel.resume, 0 for not at all
    resume_channels  how many of each user do
    """

    def __init__(
        self, *, known_hosts: str = "", redirect: str = "", resume_timeout: float = 0.0, resume_channels: int = 100
    ) -> None:
        self.known_hosts = known_hosts
        self.redirect = redirect
        self.resume_timeout = resume_timeout
        self.resume_channels = resume_channels
