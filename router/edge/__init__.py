"""From a connection to a checked question of a known caller: keys, limits, budgets."""
