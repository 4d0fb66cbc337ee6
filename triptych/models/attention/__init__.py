"""Attention over paged keys and values: one interface, several implementations, chosen once per decoder."""
