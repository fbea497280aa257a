"""Who leads, what is committed, what is deleted: decisions only."""
