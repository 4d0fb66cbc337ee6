"""A lean decoder for models built as Qwen2, 2.5 and 3 are: few and large pieces of work instead of a module tree.

`geometry.py` says which models it knows, `lean.py` is the decoder, `loading.py` fills it from a checkpoint, and
`trial.py` measures it, on a GPU, against plain float32 arithmetic before it serves anybody.
"""
