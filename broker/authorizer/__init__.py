"""Decides what a principal may do, by Kafka's rules, and remembers the decisions.

Guards: a denial overrides every permission, and without a rule nothing is allowed. A decision is never older than the
rules of this broker's image. Rules are plain functions over values. Sees only `security` and the metadata image. Begin
with `authorizer`, then `acl_index`.
"""
