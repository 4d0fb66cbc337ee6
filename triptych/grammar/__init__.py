"""Answers of a prescribed form: what may be asked for, whether it can be had, which tokens it leaves to choose from.

No torch: the router refuses what cannot be had, prefill and decode workers mask what does not fit.
"""
