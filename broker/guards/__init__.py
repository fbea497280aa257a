"""Who may ask what: a guard for each API that needs one. It stands before the handler, and only where something is forbidden at all."""
