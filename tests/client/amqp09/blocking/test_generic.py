"""Tests of the blocking face over 0-9-1 that hold over AMQP 0-9, too."""

from __future__ import annotations

from tests.client.blocking.test_calls import (
    test_a_large_body_and_an_empty_one,
    test_a_publisher_reports_what_failed,
    test_after_close,
    test_next_gives_up_in_time,
)
from tests.client.blocking.test_faults import (
    test_a_half_open_connection_is_found_by_heartbeats,
    test_a_publisher_waits_while_the_socket_is_full,
    test_a_server_that_says_nothing,
    test_a_transaction_that_was_lost,
    test_an_error_of_the_server_that_is_ours_ends_the_connection,
    test_attempts_that_are_used_up,
    test_everything_is_there_again,
    test_nothing_confirmed_is_lost_by_cuts,
    test_pending_calls_fail_at_once,
    test_settling_what_came_over_a_lost_connection,
    test_what_cannot_be_connected,
    test_without_reconnecting,
)
from tests.client.blocking.test_interrupts import (
    test_a_mistake_of_the_engine_ends_no_thread,
    test_an_interrupt_within_the_engine,
)
from tests.client.blocking.test_lifecycle import (
    test_a_callback_that_waits_for_what_only_its_thread_can_do,
    test_a_consumer_that_starts_after_its_queue_has_a_new_name,
    test_a_fork,
    test_a_transaction_given_up_after_its_connection_was_lost,
    test_closing_in_a_callback,
    test_closing_while_it_is_connected_again,
    test_events_of_a_connection_that_is_closed,
    test_threads_with_keys_of_their_own,
    test_what_a_transaction_raised_counts,
)
from tests.client.blocking.test_threads import (
    test_a_consumer_that_could_not_begin_says_so_to_all,
    test_acknowledgements_leave_without_another_call,
    test_an_interrupt_leaves_the_connection_usable,
    test_closing_ends_every_wait,
    test_heartbeats_while_the_program_computes,
    test_requests_of_many_threads,
    test_threads_share_a_channel,
)

__all__ = [
    "test_a_callback_that_waits_for_what_only_its_thread_can_do",
    "test_a_consumer_that_could_not_begin_says_so_to_all",
    "test_a_consumer_that_starts_after_its_queue_has_a_new_name",
    "test_a_fork",
    "test_a_half_open_connection_is_found_by_heartbeats",
    "test_a_large_body_and_an_empty_one",
    "test_a_mistake_of_the_engine_ends_no_thread",
    "test_a_publisher_reports_what_failed",
    "test_a_publisher_waits_while_the_socket_is_full",
    "test_a_server_that_says_nothing",
    "test_a_transaction_given_up_after_its_connection_was_lost",
    "test_a_transaction_that_was_lost",
    "test_acknowledgements_leave_without_another_call",
    "test_after_close",
    "test_an_error_of_the_server_that_is_ours_ends_the_connection",
    "test_an_interrupt_leaves_the_connection_usable",
    "test_an_interrupt_within_the_engine",
    "test_attempts_that_are_used_up",
    "test_closing_ends_every_wait",
    "test_closing_in_a_callback",
    "test_closing_while_it_is_connected_again",
    "test_events_of_a_connection_that_is_closed",
    "test_everything_is_there_again",
    "test_heartbeats_while_the_program_computes",
    "test_next_gives_up_in_time",
    "test_nothing_confirmed_is_lost_by_cuts",
    "test_pending_calls_fail_at_once",
    "test_requests_of_many_threads",
    "test_settling_what_came_over_a_lost_connection",
    "test_threads_share_a_channel",
    "test_threads_with_keys_of_their_own",
    "test_what_a_transaction_raised_counts",
    "test_what_cannot_be_connected",
    "test_without_reconnecting",
]
