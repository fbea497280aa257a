"""What a leader checks in a batch before it is appended: values in, values out, without files.

Guards: what is appended is a whole, sound batch of the current format with increasing offset deltas, and within the
topic's rules. Sees `protocol` only: neither the log nor producers (`markers` checks these).
Begin with `validator`; `validation_rules` has the limits, `rejections` the reasons.
"""
