"""Measurements of the library: what it costs, and whether it is right. One module a table."""
