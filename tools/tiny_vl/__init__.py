"""Makes tiny-vl, the embedded model: pictures and conversations, tokenizer, training, evaluation, export."""
