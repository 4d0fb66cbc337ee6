"""The workers a router knows, and which of them gets what."""
