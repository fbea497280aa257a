"""The handlers of share groups (KIP-932), one file for each API.

Guards: none of them is registered, and so advertised, unless `share_groups_enabled`. Begin with `registry`.
"""
