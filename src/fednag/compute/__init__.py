"""Functions of tensors, made fast: recorded, replayed, spread over threads."""
