"""Configuration: every key, where its value comes from, and the typed values that the broker runs on.

Guards: an unknown key and a value that is not allowed are refused before they are in force; a secret is never shown.
Sees nothing else of the broker. The tables of keys are `keys_*`: facts of Apache Kafka 4.3, but for `keys_own`. Begin
with `key`, then `broker_config` and
`topic_config`. `dynamic_config` is what changes while the broker runs.
"""
