"""AMQP 1.0 in the notation of `notation.py`: message sections, delivery states, termini (messaging 3)."""

from __future__ import annotations

from typing import Final

TEXT: Final = """
composite header 0x70 -> section | boolean durable, ubyte priority, milliseconds ttl, boolean first-acquirer, uint
    delivery-count
restricted delivery-annotations 0x71 annotations -> section
restricted message-annotations 0x72 annotations -> section
composite properties 0x73 -> section | *(message-id) message-id, binary user-id, *(address) to, string subject,
    *(address) reply-to, *(message-id) correlation-id, symbol content-type content-encoding, timestamp
    absolute-expiry-time creation-time, string group-id, sequence-no group-sequence, string reply-to-group-id
restricted application-properties 0x74 map -> section
restricted data 0x75 binary -> section
restricted amqp-sequence 0x76 list -> section
restricted amqp-value 0x77 * -> section
restricted footer 0x78 annotations -> section
restricted annotations map
restricted message-id-ulong ulong -> message-id
restricted message-id-uuid uuid -> message-id
restricted message-id-binary binary -> message-id
restricted message-id-string string -> message-id
restricted address-string string -> address
define message-format 0
composite received 0x23 -> delivery-state | uint section-number!, ulong section-offset!
composite accepted 0x24 -> delivery-state outcome
composite rejected 0x25 -> delivery-state outcome | error error
composite released 0x26 -> delivery-state outcome
composite modified 0x27 -> delivery-state outcome | boolean delivery-failed undeliverable-here, fields
    message-annotations
composite source 0x28 -> source | *(address) address, terminus-durability durable=none, terminus-expiry-policy
    expiry-policy=session-end, seconds timeout=0, boolean dynamic=false, node-properties dynamic-node-properties,
    symbol(distribution-mode) distribution-mode, filter-set filter, *(outcome) default-outcome, symbol outcomes[]
    capabilities[]
composite target 0x29 -> target | *(address) address, terminus-durability durable=none, terminus-expiry-policy
    expiry-policy=session-end, seconds timeout=0, boolean dynamic=false, node-properties dynamic-node-properties,
    symbol capabilities[]
restricted terminus-durability uint | none=0 configuration=1 unsettled-state=2
restricted terminus-expiry-policy symbol | link-detach=link-detach session-end=session-end
    connection-close=connection-close never=never
restricted std-dist-mode symbol -> distribution-mode | move=move copy=copy
restricted filter-set map
restricted node-properties fields
composite delete-on-close 0x2b -> lifetime-policy
composite delete-on-no-links 0x2c -> lifetime-policy
composite delete-on-no-messages 0x2d -> lifetime-policy
composite delete-on-no-links-or-messages 0x2e -> lifetime-policy
"""
