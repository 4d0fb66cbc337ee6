"""What a vision tower computes between its matrix products, in as few passes over memory as it takes.

`plain.py` says what is computed, in torch; `fused.py` does the same in Triton; `choice.py` picks.
"""
