"""AMQP 1.0 in the notation of `notation.py`: performatives, errors and their values (transport 2.7, 2.8)."""

from __future__ import annotations

from typing import Final

TEXT: Final = """
composite open 0x10 -> frame | string container-id! hostname, uint max-frame-size=4294967295, ushort
    channel-max=65535, milliseconds idle-time-out, ietf-language-tag outgoing-locales[] incoming-locales[], symbol
    offered-capabilities[] desired-capabilities[], fields properties
composite begin 0x11 -> frame | ushort remote-channel, transfer-number next-outgoing-id!, uint incoming-window!
    outgoing-window!, handle handle-max=4294967295, symbol offered-capabilities[] desired-capabilities[], fields
    properties
composite attach 0x12 -> frame | string name!, handle handle!, role role!, sender-settle-mode snd-settle-mode=mixed,
    receiver-settle-mode rcv-settle-mode=first, *(source) source, *(target) target, map unsettled, boolean
    incomplete-unsettled=false, sequence-no initial-delivery-count, ulong max-message-size, symbol
    offered-capabilities[] desired-capabilities[], fields properties
composite flow 0x13 -> frame | transfer-number next-incoming-id, uint incoming-window!, transfer-number
    next-outgoing-id!, uint outgoing-window!, handle handle, sequence-no delivery-count, uint link-credit available,
    boolean drain=false echo=false, fields properties
composite transfer 0x14 -> frame | handle handle!, delivery-number delivery-id, delivery-tag delivery-tag,
    message-format message-format, boolean settled more=false, receiver-settle-mode rcv-settle-mode, *(delivery-state)
    state, boolean resume=false aborted=false batchable=false
composite disposition 0x15 -> frame | role role!, delivery-number first! last, boolean settled=false,
    *(delivery-state) state, boolean batchable=false
composite detach 0x16 -> frame | handle handle!, boolean closed=false, error error
composite end 0x17 -> frame | error error
composite close 0x18 -> frame | error error
restricted role boolean | sender=false receiver=true
restricted sender-settle-mode ubyte | unsettled=0 settled=1 mixed=2
restricted receiver-settle-mode ubyte | first=0 second=1
restricted handle uint
restricted seconds uint
restricted milliseconds uint
restricted delivery-tag binary
restricted delivery-number sequence-no
restricted transfer-number sequence-no
restricted sequence-no uint
restricted message-format uint
restricted ietf-language-tag symbol
restricted fields map
composite error 0x1d | symbol(error-condition) condition!, string description, fields info
restricted amqp-error symbol -> error-condition | internal-error=amqp:internal-error not-found=amqp:not-found
    unauthorized-access=amqp:unauthorized-access decode-error=amqp:decode-error
    resource-limit-exceeded=amqp:resource-limit-exceeded not-allowed=amqp:not-allowed invalid-field=amqp:invalid-field
    not-implemented=amqp:not-implemented resource-locked=amqp:resource-locked
    precondition-failed=amqp:precondition-failed resource-deleted=amqp:resource-deleted
    illegal-state=amqp:illegal-state frame-size-too-small=amqp:frame-size-too-small
restricted connection-error symbol -> error-condition | connection-forced=amqp:connection:forced
    framing-error=amqp:connection:framing-error redirect=amqp:connection:redirect
restricted session-error symbol -> error-condition | window-violation=amqp:session:window-violation
    errant-link=amqp:session:errant-link handle-in-use=amqp:session:handle-in-use
    unattached-handle=amqp:session:unattached-handle
restricted link-error symbol -> error-condition | detach-forced=amqp:link:detach-forced
    transfer-limit-exceeded=amqp:link:transfer-limit-exceeded message-size-exceeded=amqp:link:message-size-exceeded
    redirect=amqp:link:redirect stolen=amqp:link:stolen
define port 5672
define secure-port 5671
define major 1
define minor 0
define revision 0
define min-max-frame-size 512
"""
