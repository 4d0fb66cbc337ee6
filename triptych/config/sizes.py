"""Units of settings, and the default that others than settings want to know."""

MIB = 1 << 20
GIB = 1 << 30

CPU_KV_BYTES = 512 * MIB  # where language.kv_bytes is left open
