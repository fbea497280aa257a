"""Configuration: every key, where its value comes from, and the typed values that the broker runs on.

Guards: unknown keys and invalid values are refused before they take effect; a secret is never shown. Imports nothing
else of the broker. The tables of keys are `keys_*`: facts of Apache Kafka 4.4, except `keys_own`. Begin with `key`,
then `broker_config` and `topic_config`. `dynamic_config` holds what changes while the broker runs.
"""
