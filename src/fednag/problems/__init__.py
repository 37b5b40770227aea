"""Data, splits, models and what they cost."""
