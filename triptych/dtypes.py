"""What numbers of claims may be."""

from collections.abc import Mapping

from triptych.errors import InvalidRecord

# What numbers of refs may be: torch's names, and bytes of one.
DTYPE_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
}


def require_dtype(name: str) -> None:
    if name not in DTYPE_BYTES:
        raise InvalidRecord(f"a ref of dtype {name!r}, expected one of {', '.join(DTYPE_BYTES)}")
