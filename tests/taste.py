"""What `make test` leaves to `make test-all`, with the reason, and which files take long. Values only.

`make test` has five minutes on two cores: some nine minutes of CPU. It runs whole what is cheap, of what is dear the cases that protect
most, and something of each kind. A test that isn't named here runs in both. A single case may have the mark `full` in its own file
instead.
"""

from __future__ import annotations

PARTS_APART = "tests/sim has it on virtual time, and make test kills one part at a time"
ANOTHER_CASE = "another case of what make test has a case of"
AS_PROCESS = "the same refusals run in process, in tests/unit; make test starts a broker for the worst of them"
LONG_SEARCH = "a long search for bugs that were planted in the simulated broker; a change of the simulator needs it"

FULL: dict[str, str] = {
    "tests/chaos/test_a_broker_away.py::test_a_topic_is_made_while_a_broker_is_dead": PARTS_APART,
    "tests/chaos/test_bad_directories.py::test_a_corrupt_checkpoint_of_log_starts_is_refused": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_a_damaged_journal_is_refused_and_can_be_repaired": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_a_damaged_journal_of_a_killed_broker_is_refused_and_can_be_repaired[missing]": ANOTHER_CASE,
    "tests/chaos/test_bad_directories.py::test_a_damaged_metadata_file_is_refused": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_a_directory_below_a_file_is_refused": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_a_directory_given_to_another_node_is_refused": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_a_directory_in_use_is_refused": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_a_directory_of_another_broker_is_refused": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_a_directory_of_another_cluster_is_refused": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_a_directory_stays_cleanly_stopped": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_a_directory_where_nothing_can_be_made": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_a_directory_with_partitions_but_no_owner_is_refused": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_a_metadata_file": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_a_second_directory_of_another_cluster_is_refused": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_metadata_put_back_are_taken": AS_PROCESS,
    "tests/chaos/test_bad_directories.py::test_what_can_be_found_out_again": AS_PROCESS,
    "tests/chaos/test_bad_groups.py::test_a_hundred_thousand_ids_from_one_client": "a hundred thousand requests",
    "tests/chaos/test_cluster_kills.py::test_a_broker_is_stopped_in_order": ANOTHER_CASE,
    "tests/chaos/test_cluster_kills.py::test_a_follower_is_killed_and_frozen": ANOTHER_CASE,
    "tests/chaos/test_cluster_kills.py::test_etcd_is_killed_and_frozen": ANOTHER_CASE,
    "tests/chaos/test_cluster_kills.py::test_the_controller_is_killed_and_frozen": ANOTHER_CASE,
    "tests/chaos/test_cluster_kills.py::test_the_leader_is_frozen": ANOTHER_CASE,
    "tests/chaos/test_compaction_survives.py::test_a_compacted_topic_converges": PARTS_APART,
    "tests/chaos/test_compaction_survives.py::test_librdkafka_reads_across_many_segments": ANOTHER_CASE,
    "tests/chaos/test_consumed_in_a_cluster.py": PARTS_APART,
    "tests/chaos/test_deletes_stay_deleted.py::test_a_returning_follower_asked_directly": ANOTHER_CASE,
    "tests/chaos/test_deletes_stay_deleted.py::test_a_silent_follower_delays": ANOTHER_CASE,
    "tests/chaos/test_deletes_stay_deleted.py::test_a_timed_out_delete": ANOTHER_CASE,
    "tests/chaos/test_deletes_stay_deleted.py::test_crash_of_all_replicas_with_whole_segments_gone": ANOTHER_CASE,
    "tests/chaos/test_deletes_stay_deleted.py::test_restarted_follower_elected_after_answers_were_lost": ANOTHER_CASE,
    "tests/chaos/test_deletes_stay_deleted.py::test_restarted_follower_elected_after_its_connection_was_cut": ANOTHER_CASE,
    "tests/chaos/test_etcd_broker.py::test_a_broker_that_cannot_renew_its_lease": ANOTHER_CASE,
    "tests/chaos/test_etcd_broker.py::test_a_broker_with_anothers_id": ANOTHER_CASE,
    "tests/chaos/test_etcd_broker.py::test_broker_and_etcd_are_killed_again_and_again": PARTS_APART,
    "tests/chaos/test_etcd_restored.py::test_a_broker_that_was_away_is_the_first": ANOTHER_CASE,
    "tests/chaos/test_etcd_restored.py::test_all_is_back_after_a_recovery": "a whole recovery, half a minute each",
    "tests/chaos/test_etcd_restored.py::test_brokers_running": ANOTHER_CASE,
    "tests/chaos/test_etcd_restored.py::test_brokers_stopped[files]": ANOTHER_CASE,
    "tests/chaos/test_etcd_restored.py::test_one_of_three_alone": ANOTHER_CASE,
    "tests/chaos/test_etcd_sessions.py": "times of leases by default, half a minute; tests/unit has them on virtual time",
    "tests/chaos/test_few_descriptors.py::test_five_hundred_partitions": "five hundred partitions, twice recovered",
    "tests/chaos/test_full_disk_in_a_cluster.py::test_a_delete_passes": ANOTHER_CASE,
    "tests/chaos/test_full_disk_in_a_cluster.py::test_a_full_disk_on_the_leader": ANOTHER_CASE,
    "tests/chaos/test_large_requests.py::test_several_at_once": "a million rows at once",
    "tests/chaos/test_large_requests.py::test_tagged_fields_by_the_million": "a million tagged fields",
    "tests/chaos/test_large_requests.py::test_very_large_requests": "a million rows for each API",
    "tests/chaos/test_members_come_and_go.py::test_a_partition_has_one_owner": PARTS_APART,
    "tests/chaos/test_older_metadata.py::test_the_metadata_of_one_broker": ANOTHER_CASE,
    "tests/chaos/test_one_way_partitions.py": PARTS_APART,
    "tests/chaos/test_operator_lines_in_a_cluster.py": PARTS_APART,
    "tests/chaos/test_parked_deletes.py::test_leader_stopped": ANOTHER_CASE,
    "tests/chaos/test_parked_deletes.py::test_leadership_flipped_back": ANOTHER_CASE,
    "tests/chaos/test_parked_deletes.py::test_the_leaders_replica_removed": ANOTHER_CASE,
    "tests/chaos/test_parked_deletes.py::test_topic_deleted": ANOTHER_CASE,
    "tests/chaos/test_returning_directories.py::test_a_broker_with_another_brokers_directory": ANOTHER_CASE,
    "tests/chaos/test_returning_directories.py::test_a_follower_back": ANOTHER_CASE,
    "tests/chaos/test_returning_directories.py::test_a_leader_back_at_once": ANOTHER_CASE,
    "tests/chaos/test_returning_directories.py::test_directories_are_swapped": ANOTHER_CASE,
    "tests/chaos/test_several_directories.py::test_a_bad_directory_is_offline_and_the_others_serve[gone]": ANOTHER_CASE,
    "tests/chaos/test_several_directories.py::test_a_bad_directory_is_offline_and_the_others_serve[replaced": ANOTHER_CASE,
    "tests/chaos/test_several_directories.py::test_a_bad_directory_is_offline_and_the_others_serve[unmounted]": ANOTHER_CASE,
    "tests/chaos/test_several_directories.py::test_a_directory_that_comes_back": ANOTHER_CASE,
    "tests/chaos/test_several_directories.py::test_a_missing_directory_of_the_metadata": ANOTHER_CASE,
    "tests/chaos/test_several_directories.py::test_without_the_directory_of_the_metadata": ANOTHER_CASE,
    "tests/clients/test_bench.py": "the bench isn't a part of the broker",
    "tests/pipeline/test_fetching.py::test_a_range_is_read_on_when_its_leader_is_killed": ANOTHER_CASE,
    "tests/pipeline/test_spark_example.py": "another Spark, for an example",
    "tests/sim/test_cluster_planted_bugs.py": LONG_SEARCH,
    "tests/sim/test_cluster_planted_consumer_bugs.py": LONG_SEARCH,
    "tests/sim/test_cluster_planted_coordinator_bugs.py": LONG_SEARCH,
    "tests/sim/test_cluster_planted_disk_bugs.py": LONG_SEARCH,
    "tests/sim/test_cluster_planted_upkeep_bugs.py": LONG_SEARCH,
    "tests/sim/test_no_descriptors.py": LONG_SEARCH,
    "tests/sim/test_store_restores.py::test_a_planted_bug_is_found": LONG_SEARCH,
}
"""Beginnings of node ids, and why they wait."""

SECONDS: dict[str, int] = {
    "tests/chaos/test_etcd_restored.py": 137,
    "tests/chaos/test_bad_directories.py": 110,
    "tests/chaos/test_several_directories.py": 99,
    "tests/chaos/test_deletes_stay_deleted.py": 90,
    "tests/chaos/test_cluster_kills.py": 75,
    "tests/chaos/test_returning_directories.py": 74,
    "tests/chaos/test_large_requests.py": 72,
    "tests/chaos/test_full_disk_in_a_cluster.py": 60,
    "tests/chaos/test_parked_deletes.py": 54,
    "tests/clients/test_bench.py": 50,
    "tests/clients/test_partitions.py": 50,
    "tests/chaos/test_etcd_broker.py": 45,
    "tests/chaos/test_few_descriptors.py": 40,
    "tests/chaos/test_compaction_survives.py": 40,
    "tests/chaos/test_etcd_sessions.py": 35,
    "tests/clients/test_reconnect.py": 35,
    "tests/clients/test_two_coordinators.py": 30,
    "tests/clients/test_three_brokers.py": 30,
    "tests/chaos/test_members_come_and_go.py": 29,
    "tests/chaos/test_etcd_store.py": 27,
    "tests/chaos/test_one_way_partitions.py": 24,
    "tests/chaos/test_older_metadata.py": 22,
    "tests/chaos/test_sigkill.py": 21,
    "tests/chaos/test_bad_groups.py": 20,
    "tests/clients/test_groups_of_several_brokers.py": 20,
    "tests/chaos/test_admin_client_in_a_cluster.py": 17,
    "tests/chaos/test_consumed_in_a_cluster.py": 17,
    "tests/chaos/test_groups_survive.py": 17,
    "tests/clients/test_offsets_in_transactions.py": 16,
    "tests/clients/test_consumer_groups.py": 15,
    "tests/clients/test_transactions.py": 15,
    "tests/chaos/test_frame_storm.py": 15,
    "tests/chaos/test_transfers.py": 15,
    "tests/chaos/test_etcd_access.py": 14,
    "tests/chaos/test_clients_go_on.py": 14,
    "tests/chaos/test_consumer_groups_survive.py": 12,
    "tests/chaos/test_configs_survive.py": 11,
    "tests/chaos/test_operator_lines_in_a_cluster.py": 11,
}
"""Of the files whose tests wait for real brokers, longest first: workers share files, and a long one must not come last."""


def is_full(node_id: str) -> bool:
    """Whether only `make test-all` runs this test."""
    return any(node_id.startswith(prefix) for prefix in FULL)


def seconds(node_id: str) -> int:
    """What the file of a test takes, roughly; 0 for the many short ones."""
    return SECONDS.get(node_id.partition("::")[0], 0)
