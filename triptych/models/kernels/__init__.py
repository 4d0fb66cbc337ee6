"""What tower and decoder compute between their matrix products, in as few passes over memory as it takes.

`plain.py` and `plain_turn.py` say what is computed, in torch; `fused.py` and `fused_turn.py` do the same in Triton;
`choice.py` picks.
"""
