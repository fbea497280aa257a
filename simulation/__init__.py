"""Brokers and clusters on virtual time, with a simulated network and disks: loads, faults, histories, checkers.

Guards: a seed repeats a run, event by event. It is for the tests of this repository: no wheel contains it, and no other
package imports it. Begin with `broker_simulation` (one broker), then `cluster_simulation`. `faults` has the faults,
`cluster_invariants` the checks.
"""
