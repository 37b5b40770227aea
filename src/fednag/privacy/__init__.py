"""Differential privacy: what a run's noise promises, and what it has cost so far."""
