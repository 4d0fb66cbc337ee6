"""A request's way through the tiers: prepared, encoded, prefilled, decoded, tried again."""
