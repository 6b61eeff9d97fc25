"""Each row of the audit of the seed documents that said "partly" or "missing" (issue 19), with the tests that show it today.

A row is named by the number of its seed and the words of the audit. `DIFFERENT` has the rows that stay as they are, and where the
docs say so.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SHOWN = {
    "000 type constraint on a fan-out channel": ("integration/fanout/test_limits.py::test_an_exchange_accepts_by_type",),
    "000 throttle on a fan-out channel": (
        "integration/fanout/test_limits.py::test_publishers_slow_down_before_the_exchange_is_full",
    ),
    "000 bounded fan-out channel": (
        "integration/fanout/test_limits.py::test_a_publisher_waits_until_the_slowest_subscriber_has_processed_enough",
        "integration/fanout/test_limits.py::test_a_full_exchange_refuses",
        "integration/fanout/test_limits.py::test_drop_head_drops_the_oldest_and_subscribers_learn_how_many",
        "integration/fanout/test_limits.py::test_a_suspect_subscriber_holds_nobody_up",
        "chaos/test_broadcast_limits.py::test_eight_processes_never_exceed_the_limit_of_an_exchange",
    ),
    "000 tracking for Celery tasks": (
        "integration/celery/test_tracked_tasks.py::test_a_tracked_task_is_complete_when_it_has_ended",
        "integration/celery/test_tracked_tasks.py::test_chains_groups_chords_and_callbacks_are_refused_with_tracking",
        "integration/celery/test_tracked_tasks.py::test_an_eager_task_is_refused_with_tracking",
    ),
    "000 no answer before the timeout, for every delivery": (
        "integration/flow_control/test_tracking.py::test_who_does_not_answer_in_time_counts_as_nacked_and_leaves_a_dead_letter",
        "integration/consumers/test_consumer_timeout.py::test_it_counts_as_a_failed_delivery",
    ),
    "000 nacked deliveries go to the DLQ": (
        "integration/fanout/test_counters.py::test_a_rejected_broadcast_goes_to_the_dead_letter_exchange_of_its_queue",
    ),
    "000 stats of a fan-out channel": (
        "integration/fanout/test_counters.py::test_a_subscriber_counts_what_became_of_its_broadcasts",
    ),
    "000 DLQ can be read and worked off": (
        "integration/cli/test_unroutable.py::test_none_goes_to_the_reserved_queue",
        "integration/cli/test_unroutable.py::test_check_finds_what_is_ready_there_and_makes_it_a_dead_letter",
    ),
    "000 resolution when a recipient vanishes": (
        "integration/flow_control/test_tracking.py::test_a_purge_and_a_deletion_resolve_at_once",
        "integration/flow_control/test_tracking.py::test_a_message_that_expires_resolves_its_delivery",
        "integration/flow_control/test_tracking.py::test_a_cancelled_message_and_a_moved_one_resolve_their_deliveries",
    ),
    "001 manual ack in the handler": (
        "integration/lifecycle/test_task_settlements.py::test_a_settled_message_fares_as_its_task_said_however_the_task_goes_on",
        "integration/lifecycle/test_task_settlements.py::test_a_kill_of_the_worker_repeats_nothing_that_was_acked",
    ),
    "001 what failed is visible on the failed message": (
        "integration/lifecycle/test_reasons.py::test_a_dead_letter_its_message_and_its_events_name_the_exception",
    ),
    "001 'no retry allowed' is told": ("integration/broker/test_retry_policy.py::test_none_does_not_try_again",),
    "001 archive of COMPLETED and FAILED": (
        "integration/event_log/test_archiver.py::test_a_dead_letter_is_a_row_at_once_with_its_exception_and_a_replayed_one_gets_another",
        "integration/lifecycle/test_ack_policies.py::test_without_a_policy_celerys_settings_hold_and_events_tell_how_the_work_ended",
    ),
    "001 over-counting for messages beside the poison one": (
        "integration/celery/test_innocents.py::test_a_task_that_kills_its_worker_dies_alone",
    ),
    "001 state of one message by task id": (
        "integration/lifecycle/test_messages.py::test_a_moved_task_is_followed_to_where_it_is_now",
    ),
    "002 explicit suspend of a consumer (flow)": (
        "integration/transport/test_flow.py::test_suspended_consumers_get_nothing_until_they_go_on",
        "integration/transport/test_flow.py::test_prefetched_messages_go_to_other_consumers",
    ),
    "002 a notified consumer pulls or declines": (
        "integration/transport/test_fairness.py::test_full_queues_are_served_in_turn",
    ),
    "002 connection iterates over its sessions": (
        "integration/transport/test_fairness.py::test_two_channels_of_a_connection_are_served_in_turn",
    ),
    "002 sessions iterate over queues": (
        "integration/celery/test_fairness.py::test_a_few_tasks_beside_a_full_queue_are_among_the_first",
    ),
    "002 states visible": ("integration/consumers/test_registry.py::test_held_messages_and_state_are_those_of_the_consumer",),
    "002 non-acquiring consumers (browsers)": (
        "integration/transport/test_browse.py::test_browse_yields_each_state_in_its_order",
        "integration/transport/test_browse_consumer.py::test_a_browser_gets_a_copy_of_each_ready_message_in_order_and_changes_nothing",
        "chaos/test_browsing.py::test_a_hundred_thousand_messages_are_browsed_in_short_calls_and_nothing_changes",
    ),
    "002 messages the consumer is interested in (selectors)": (
        "integration/consumers/test_filters.py::test_a_consumer_takes_what_matches_and_leaves_the_rest",
        "integration/consumers/test_filters.py::test_what_matches_is_found_behind_what_does_not_in_short_calls",
        "integration/consumers/test_filters.py::test_many_consumers_and_publishers_lose_and_mix_nothing",
    ),
    "003 subscribe to a key": (
        "integration/fanout/test_server_filter.py::test_a_thousand_broadcasts_of_other_keys_cost_a_subscriber_less_than_5_kb",
        "integration/fanout/test_server_filter.py::test_the_order_of_the_exchange_holds_over_several_keys_and_two_publishers",
    ),
    "003 kept until processed": (
        "integration/fanout/test_limits.py::test_a_publisher_waits_until_the_slowest_subscriber_has_processed_enough",
        "integration/fanout/test_gaps.py::test_a_subscriber_that_was_away_for_too_long_learns_exactly_how_many_it_missed",
    ),
    "003 how much the dead one had not processed": (
        "integration/fanout/test_subscribers.py::test_a_subscriber_without_a_sign_of_life_dies_after_its_second_chance",
    ),
    "003 buffer limit in bytes": (
        "integration/fanout/test_limits.py::test_bytes_of_what_is_not_processed_are_limited",
        "integration/fanout/test_large_broadcasts.py::test_a_backlog_of_large_broadcasts_fills_neither_the_server_nor_the_subscriber",
    ),
    "004 MultiChannelPoller serves all channels": (
        "integration/transport/test_fairness.py::test_a_message_for_a_second_channel_does_not_wait_for_the_backlog_of_the_first",
    ),
    "004 fair over several queues": (
        "integration/transport/test_fairness.py::test_one_message_behind_a_full_queue_is_among_the_first",
    ),
    "004 ssl": ("integration/connection/test_connector_tls.py::test_a_connection_whose_certificate_is_checked",),
    "004 table of key names for operators": (
        "integration/scripts/test_key_descriptions.py::test_every_key_of_a_mixed_run_is_on_the_page_with_its_type_and_fields",
    ),
    "card testcontainers": ("servers/test_real_servers.py::test_core_integration_tests_pass",),
    "card test broker for users' unit tests": (
        "integration/testing/test_sample_project.py::test_sample_project_passes",
    ),
    "card pipeline on PySpark": (
        "spark/test_real_events.py::test_real_events_are_aggregated_and_dead_letters_replayed_once",
    ),
}  # fmt: skip

#: Row -> a file of the docs, and words that stand there.
DIFFERENT = {
    "003 one mailbox order over all channels of a publisher": ("docs/broadcasts.md", "and not between two exchanges"),
    "004 send_task(routing_key='', exchange='broadcast')": ("docs/broadcasts.md", "**The trap.**"),
    "card fakeredis": ("docs/design/0019-testing.md", "fakeredis"),
}


@cache
def names_in(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", SHOWN)
def test_each_row_has_tests_that_exist(row):
    for name in SHOWN[row]:
        path, _, test = name.partition("::")
        assert test in names_in(path), name


@pytest.mark.parametrize("row", DIFFERENT)
def test_what_is_different_is_said(row):
    path, words = DIFFERENT[row]
    assert words in " ".join((ROOT / path).read_text(encoding="utf-8").split())


def test_the_table_is_complete():
    # 27 rows said "partly", 9 "missing".
    assert len(SHOWN) + len(DIFFERENT) == 36
