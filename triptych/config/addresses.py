"""Addresses as texts."""


def host_and_port(host: str, port: int) -> str:
    """As URLs have it: an IPv6 address stands in brackets there, or its colons would begin the port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
