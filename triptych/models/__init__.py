"""What a model is. Without torch: `card`, `adapter` (for routers). With it: `loading`, and `base` for the engine."""
