"""Frame input and output of one socket, and the limits negotiated for it."""

from __future__ import annotations

from typing import Final

from leveret.client.parameters import Parameters
from leveret.wire.amqp10 import frames
from leveret.wire.amqp10.composite import Performative
from leveret.wire.amqp10.frames import FrameReader
from leveret.wire.amqp10.output import Output
from leveret.wire.amqp10.transport import Open

DEFAULT_FRAME_MAX: Final = 131072
DEFAULT_CHANNEL_MAX: Final = 1023


class Engine:
    """Frames of one socket.

    Attributes:
        channel_max: Highest channel number that both sides allow.
        heartbeat: Seconds without output after which the client sends an empty frame; 0 for never.
        heartbeat_timeout: Seconds without data after which the server is considered dead; 0 for never.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.max_frame_size = max(512, parameters.frame_max or DEFAULT_FRAME_MAX)
        self.channel_max = parameters.channel_max or DEFAULT_CHANNEL_MAX
        self.reader = FrameReader(self.max_frame_size)
        self.output = Output()
        self.idle_time_out = parameters.heartbeat * 1000
        self.heartbeat = 0.0
        self.heartbeat_timeout = 0.0
        # Whether the connection can be closed cleanly.
        self.can_close = False

    def allow_close(self) -> None:
        """Note that the connection is open, so that it can be closed cleanly."""
        self.can_close = True

    def forbid_close(self) -> None:
        """Note that the server has closed the connection."""
        self.can_close = False

    @property
    def pending(self) -> int:
        """Bytes of output."""
        return self.output.pending

    def to_send(self) -> bytes:
        """Return and clear the output."""
        return self.output.to_send()

    def receive(self, data: bytes) -> list[Performative]:
        """Return the frames in received data."""
        return self.reader.receive(data)

    def send(self, performative: Performative) -> None:
        """Encode a performative. Raises EncodeError for a field that does not fit its type."""
        self.output.send(performative)

    def send_header(self, protocol: int) -> None:
        """Send a protocol header."""
        self.output.send_header(protocol)

    def send_heartbeat(self) -> None:
        """Send an empty frame."""
        if self.can_close:
            self.output.send_empty()

    def limit_frames(self, size: int) -> None:
        """Set the maximum size of frames to send before the server's `open`."""
        self.output.max_frame_size = size

    def agree(self, theirs: Open) -> None:
        """Apply the limits of the server's `open`."""
        self.output.max_frame_size = min(max(theirs.max_frame_size, 512), DEFAULT_FRAME_MAX)
        self.channel_max = min(self.channel_max, theirs.channel_max)
        ours = self.idle_time_out / 1000
        their = (theirs.idle_time_out or 0) / 1000
        self.heartbeat_timeout = 2 * ours
        # Use the smaller interval of both sides. A smaller one costs only an occasional empty frame.
        self.heartbeat = min([seconds for seconds in (ours, their) if seconds] or [0.0])


AMQP: Final = frames.AMQP
SASL: Final = frames.SASL
