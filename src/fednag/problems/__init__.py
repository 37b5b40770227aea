"""Models and losses on data: gradients as PyTorch gives them, metrics."""
