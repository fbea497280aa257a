"""Coordinators: what groups of consumers agree on, kept in a topic of this broker's."""
