"""What a principal may do: the question that guards and handlers ask, Kafka's rules that answer it, and the decisions that are remembered.

Guards: a denial wins over every permission, and what no rule allows is denied; a decision is never older than the rules that this broker's
image shows. Rules are plain functions over values. Sees `security` only, and the metadata image. Begin with `authorizer`, then `acl_index`.
"""
