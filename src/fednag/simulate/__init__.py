"""Runs a federated method on one machine."""
