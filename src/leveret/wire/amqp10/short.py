"""Fast paths for `transfer`, `disposition` and `flow` in their usual forms, which bypass generic values.

The readers return None for any other form, including malformed data, which the generic decoder then handles. The
writers produce the same bytes as the generic encoder.
"""

from __future__ import annotations

import struct
from typing import Final

from leveret.wire.amqp10.codes import (
    BINARY_8,
    DESCRIBED,
    FALSE,
    LIST_0,
    LIST_8,
    LIST_32,
    NULL,
    SMALL_UINT,
    SMALL_ULONG,
    TRUE,
    UBYTE,
    UINT,
    UINT_0,
)
from leveret.wire.amqp10.descriptors import ACCEPTED, RELEASED
from leveret.wire.amqp10.encode import encode_binary, encode_uint
from leveret.wire.amqp10.errors import EncodeError
from leveret.wire.amqp10.messaging import Accepted, Released
from leveret.wire.amqp10.transport import Disposition, Flow, Transfer
from leveret.wire.amqp10.values import Value

# The states without fields. They are immutable, so they are shared.
ACCEPTED_STATE: Final = Accepted()
RELEASED_STATE: Final = Released()

_PACK_HEAD: Final = struct.Struct(">BBBBBB").pack
_PACK_HEAD_32: Final = struct.Struct(">BBBBII").pack
_UINTS: Final[list[bytes]] = [encode_uint(number) for number in range(256)]
_PACK_UINT: Final = struct.Struct(">BI").pack

_FLOW: Final = 0x13
_TRANSFER: Final = 0x14
_DISPOSITION: Final = 0x15


def read_transfer(data: bytes, pos: int, stop: int, count: int, channel: int) -> Transfer | None:
    """Return the transfer whose `count` fields are between `pos` and `stop`, without its payload."""
    handle = -1
    delivery_id: int | None = None
    tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more = False
    mode: int | None = None
    resume = aborted = batchable = False
    if count == 0 or count > 11:
        return None
    try:
        code = data[pos]
        if code == SMALL_UINT:
            handle = data[pos + 1]
            pos += 2
        elif code == UINT_0:
            handle = 0
            pos += 1
        elif code == UINT:
            handle = data[pos + 1] << 24 | data[pos + 2] << 16 | data[pos + 3] << 8 | data[pos + 4]
            pos += 5
        else:
            return None
        if count > 1:
            code = data[pos]
            if code == UINT:
                delivery_id = data[pos + 1] << 24 | data[pos + 2] << 16 | data[pos + 3] << 8 | data[pos + 4]
                pos += 5
            elif code == SMALL_UINT:
                delivery_id = data[pos + 1]
                pos += 2
            elif code == UINT_0:
                delivery_id = 0
                pos += 1
            elif code == NULL:
                pos += 1
            else:
                return None
        if count > 2:
            code = data[pos]
            if code == BINARY_8:
                end = pos + 2 + data[pos + 1]
                tag = data[pos + 2 : end]
                pos = end
            elif code == NULL:
                pos += 1
            else:
                return None
        if count > 3:
            code = data[pos]
            if code == UINT_0:
                message_format = 0
            elif code == SMALL_UINT:
                message_format = data[pos + 1]
                pos += 1
            elif code == UINT:
                message_format = data[pos + 1] << 24 | data[pos + 2] << 16 | data[pos + 3] << 8 | data[pos + 4]
                pos += 4
            elif code != NULL:
                return None
            pos += 1
        if count > 4:
            code = data[pos]
            if code == FALSE:
                settled = False
            elif code == TRUE:
                settled = True
            elif code != NULL:
                return None
            pos += 1
        if count > 5:
            code = data[pos]
            if code == TRUE:
                more = True
            elif code != FALSE and code != NULL:
                return None
            pos += 1
        if count > 6:
            code = data[pos]
            if code == UBYTE:
                mode = data[pos + 1]
                if mode > 1:
                    return None
                pos += 1
            elif code != NULL:
                return None
            pos += 1
        if count > 7:
            if data[pos] != NULL:
                return None
            pos += 1
        if count > 8:
            code = data[pos]
            if code == TRUE:
                resume = True
            elif code != FALSE and code != NULL:
                return None
            pos += 1
        if count > 9:
            code = data[pos]
            if code == TRUE:
                aborted = True
            elif code != FALSE and code != NULL:
                return None
            pos += 1
        if count > 10:
            code = data[pos]
            if code == TRUE:
                batchable = True
            elif code != FALSE and code != NULL:
                return None
            pos += 1
    except IndexError:
        return None
    if pos != stop:
        return None
    return Transfer(
        handle, delivery_id, tag, message_format, settled, more, mode, None, resume, aborted, batchable, b"", channel
    )


def read_disposition(data: bytes, pos: int, stop: int, count: int, channel: int) -> Disposition | None:
    """Return the disposition whose `count` fields are between `pos` and `stop`."""
    last: int | None = None
    settled = batchable = False
    state: Value = None
    if count < 2 or count > 6:
        return None
    try:
        code = data[pos]
        if code != TRUE and code != FALSE:
            return None
        role = code == TRUE
        pos += 1
        code = data[pos]
        if code == UINT:
            first = data[pos + 1] << 24 | data[pos + 2] << 16 | data[pos + 3] << 8 | data[pos + 4]
            pos += 5
        elif code == SMALL_UINT:
            first = data[pos + 1]
            pos += 2
        elif code == UINT_0:
            first = 0
            pos += 1
        else:
            return None
        if count > 2:
            code = data[pos]
            if code == UINT:
                last = data[pos + 1] << 24 | data[pos + 2] << 16 | data[pos + 3] << 8 | data[pos + 4]
                pos += 5
            elif code == NULL:
                pos += 1
            elif code == SMALL_UINT:
                last = data[pos + 1]
                pos += 2
            elif code == UINT_0:
                last = 0
                pos += 1
            else:
                return None
        if count > 3:
            code = data[pos]
            if code == TRUE:
                settled = True
            elif code != FALSE and code != NULL:
                return None
            pos += 1
        if count > 4:
            if data[pos] == NULL:
                pos += 1
            elif data[pos] == DESCRIBED and data[pos + 1] == SMALL_ULONG:
                if data[pos + 3] == LIST_0:
                    end = pos + 4
                elif data[pos + 3] == LIST_8 and data[pos + 4] == 1 and data[pos + 5] == 0:
                    end = pos + 6
                else:
                    return None
                if data[pos + 2] == ACCEPTED:
                    state = ACCEPTED_STATE
                elif data[pos + 2] == RELEASED:
                    state = RELEASED_STATE
                else:
                    return None
                pos = end
            else:
                return None
        if count > 5:
            code = data[pos]
            if code == TRUE:
                batchable = True
            elif code != FALSE and code != NULL:
                return None
            pos += 1
    except IndexError:
        return None
    if pos != stop:
        return None
    return Disposition(role, first, last, settled, state, batchable, channel)


def read_flow(data: bytes, pos: int, stop: int, count: int, channel: int) -> Flow | None:
    """Return the flow whose `count` fields are between `pos` and `stop`."""
    if count < 4 or count > 11:
        return None
    numbers: list[int | None] = []
    try:
        for _ in range(min(count, 8)):
            code = data[pos]
            if code == UINT:
                numbers.append(data[pos + 1] << 24 | data[pos + 2] << 16 | data[pos + 3] << 8 | data[pos + 4])
                pos += 5
            elif code == SMALL_UINT:
                numbers.append(data[pos + 1])
                pos += 2
            elif code == UINT_0:
                numbers.append(0)
                pos += 1
            elif code == NULL:
                numbers.append(None)
                pos += 1
            else:
                return None
        drain = echo = False
        if count > 8:
            code = data[pos]
            if code == TRUE:
                drain = True
            elif code != FALSE and code != NULL:
                return None
            pos += 1
        if count > 9:
            code = data[pos]
            if code == TRUE:
                echo = True
            elif code != FALSE and code != NULL:
                return None
            pos += 1
        if count > 10:
            if data[pos] != NULL:
                return None
            pos += 1
    except IndexError:
        return None
    incoming_window = numbers[1]
    next_outgoing_id = numbers[2]
    outgoing_window = numbers[3]
    if pos != stop or incoming_window is None or next_outgoing_id is None or outgoing_window is None:
        return None
    while len(numbers) < 8:
        numbers.append(None)
    return Flow(
        incoming_window,
        next_outgoing_id,
        outgoing_window,
        numbers[0],
        numbers[4],
        numbers[5],
        numbers[6],
        numbers[7],
        drain,
        echo,
        None,
        channel,
    )


def uint(value: int) -> bytes:
    """Encode a uint faster than `encode.encode_uint`."""
    if 0 <= value <= 255:
        return _UINTS[value]
    if 0 < value <= 0xFFFFFFFF:
        return _PACK_UINT(UINT, value)
    raise EncodeError(f"{value} is out of the range of a uint")


def _optional(value: int | None) -> bytes:
    return b"\x40" if value is None else uint(value)


def _performative(descriptor: int, count: int, content: bytes) -> bytes:
    size = len(content)
    if size < 255:
        return _PACK_HEAD(0, SMALL_ULONG, descriptor, LIST_8, size + 1, count) + content
    return _PACK_HEAD_32(0, SMALL_ULONG, descriptor, LIST_32, size + 4, count) + content


def write_transfer(
    handle: int, delivery_id: int | None, tag: bytes | None, message_format: int | None, settled: bool | None, more: bool
) -> bytes:
    """Encode a transfer whose other fields are absent."""
    content = uint(handle)
    count = 1
    if more:
        count = 6
    elif settled is not None:
        count = 5
    elif message_format is not None:
        count = 4
    elif tag is not None:
        count = 3
    elif delivery_id is not None:
        count = 2
    if count > 1:
        content += _optional(delivery_id)
    if count > 2:
        content += b"\x40" if tag is None else encode_binary(tag)
    if count > 3:
        content += _optional(message_format)
    if count > 4:
        content += b"\x40" if settled is None else b"\x41" if settled else b"\x42"
    if count > 5:
        content += b"\x41"
    return _performative(_TRANSFER, count, content)


def write_disposition(role: bool, first: int, last: int | None, settled: bool, state: bytes, batchable: bool) -> bytes:
    """Encode a disposition. `state` is already encoded; empty if absent."""
    content = (b"\x41" if role else b"\x42") + uint(first)
    count = 2
    if batchable:
        count = 6
    elif state:
        count = 5
    elif settled:
        count = 4
    elif last is not None:
        count = 3
    if count > 2:
        content += _optional(last)
    if count > 3:
        content += b"\x41" if settled else b"\x40"
    if count > 4:
        content += state or b"\x40"
    if count > 5:
        content += b"\x41"
    return _performative(_DISPOSITION, count, content)


def write_flow(flow: Flow) -> bytes:
    """Encode a flow without properties."""
    numbers = [
        flow.next_incoming_id,
        flow.incoming_window,
        flow.next_outgoing_id,
        flow.outgoing_window,
        flow.handle,
        flow.delivery_count,
        flow.link_credit,
        flow.available,
    ]
    count = 8
    if flow.echo:
        count = 10
    elif flow.drain:
        count = 9
    else:
        while numbers[count - 1] is None:
            count -= 1
    content = b"".join([_optional(number) for number in numbers[: min(count, 8)]])
    if count > 8:
        content += b"\x41" if flow.drain else b"\x40"
    if count > 9:
        content += b"\x41"
    return _performative(_FLOW, count, content)
