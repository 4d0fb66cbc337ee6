"""Claims and endpoints for the machines' tests, told apart by a number."""

from triptych.journey import ClaimId, Endpoint

OWNER = Endpoint("10.0.0.1:7001", 11)
OTHER = Endpoint("10.0.0.2:7001", 13)


def claim(number: int) -> ClaimId:
    return ClaimId(number.to_bytes(16, "little"))
