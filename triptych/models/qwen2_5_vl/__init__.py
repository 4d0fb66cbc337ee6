"""Qwen2.5-VL: windowed vision tower with 2x2 merging, M-RoPE decoder. `geometry.py` is the half without torch."""
