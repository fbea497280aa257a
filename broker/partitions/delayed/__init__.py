"""Requests that wait: what each waits for, and how it is answered when that has come."""
