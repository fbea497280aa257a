"""Groups whose partitions the broker assigns: consumer groups (KIP-848) and share groups (KIP-932).

Guards: a consumer group's partition has at most one owner; only records change a group. Decisions only: values in,
effects out. Sees `classic` (for changes of type) and `runtime`. Begin with `modern_group` and `modern_groups`, then
`consumer_groups` or `share_groups`.
"""
