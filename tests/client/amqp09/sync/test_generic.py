"""Tests of the sync API for 0-9-1 that also pass over AMQP 0-9."""

from __future__ import annotations

from tests.client.sync.test_calls import (
    test_after_close,
    test_large_and_empty_bodies,
    test_next_times_out,
    test_publisher_reports_failed_messages,
)
from tests.client.sync.test_faults import (
    test_client_error_ends_the_connection,
    test_connection_failures,
    test_cuts_lose_no_confirmed_messages,
    test_everything_is_restored,
    test_half_open_connection_is_detected_by_heartbeats,
    test_lost_transaction,
    test_pending_calls_fail_at_once,
    test_publisher_waits_while_the_socket_is_full,
    test_reconnect_attempts,
    test_reconnect_disabled,
    test_settling_messages_of_a_lost_connection,
    test_silent_server,
)
from tests.client.sync.test_interrupts import (
    test_engine_bug_ends_no_thread,
    test_interrupt_inside_the_engine,
)
from tests.client.sync.test_lifecycle import (
    test_callback_that_waits_for_its_own_thread,
    test_close_in_a_callback,
    test_close_while_reconnecting,
    test_consumer_started_after_its_queue_was_renamed,
    test_events_of_a_closed_connection,
    test_fork,
    test_threads_with_separate_connections,
    test_transaction_abandoned_after_a_lost_connection,
    test_transaction_raises_the_error_of_its_block,
)
from tests.client.sync.test_threads import (
    test_acks_are_sent_without_another_call,
    test_close_ends_every_wait,
    test_failed_start_of_a_shared_consumer,
    test_heartbeats_while_the_program_computes,
    test_interrupt_leaves_the_connection_usable,
    test_requests_of_many_threads,
    test_threads_share_a_channel,
)

__all__ = [
    "test_acks_are_sent_without_another_call",
    "test_after_close",
    "test_callback_that_waits_for_its_own_thread",
    "test_client_error_ends_the_connection",
    "test_close_ends_every_wait",
    "test_close_in_a_callback",
    "test_close_while_reconnecting",
    "test_connection_failures",
    "test_consumer_started_after_its_queue_was_renamed",
    "test_cuts_lose_no_confirmed_messages",
    "test_engine_bug_ends_no_thread",
    "test_events_of_a_closed_connection",
    "test_everything_is_restored",
    "test_failed_start_of_a_shared_consumer",
    "test_fork",
    "test_half_open_connection_is_detected_by_heartbeats",
    "test_heartbeats_while_the_program_computes",
    "test_interrupt_inside_the_engine",
    "test_interrupt_leaves_the_connection_usable",
    "test_large_and_empty_bodies",
    "test_lost_transaction",
    "test_next_times_out",
    "test_pending_calls_fail_at_once",
    "test_publisher_reports_failed_messages",
    "test_publisher_waits_while_the_socket_is_full",
    "test_reconnect_attempts",
    "test_reconnect_disabled",
    "test_requests_of_many_threads",
    "test_settling_messages_of_a_lost_connection",
    "test_silent_server",
    "test_threads_share_a_channel",
    "test_threads_with_separate_connections",
    "test_transaction_abandoned_after_a_lost_connection",
    "test_transaction_raises_the_error_of_its_block",
]
