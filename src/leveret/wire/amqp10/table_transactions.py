"""AMQP 1.0 in the notation of `notation.py`: coordination (transactions 4)."""

from __future__ import annotations

from typing import Final

TEXT: Final = """
composite coordinator 0x30 -> target | symbol(txn-capability) capabilities[]
composite declare 0x31 | *(global-tx-id) global-id
composite discharge 0x32 | *(txn-id) txn-id!, boolean fail
restricted transaction-id binary -> txn-id
composite declared 0x33 -> delivery-state outcome | *(txn-id) txn-id!
composite transactional-state 0x34 -> delivery-state | *(txn-id) txn-id!, *(outcome) outcome
restricted txn-capability symbol -> txn-capability | local-transactions=amqp:local-transactions
    distributed-transactions=amqp:distributed-transactions promotable-transactions=amqp:promotable-transactions
    multi-txns-per-ssn=amqp:multi-txns-per-ssn multi-ssns-per-txn=amqp:multi-ssns-per-txn
restricted transaction-error symbol -> error-condition | unknown-id=amqp:transaction:unknown-id
    transaction-rollback=amqp:transaction:rollback transaction-timeout=amqp:transaction:timeout
"""
