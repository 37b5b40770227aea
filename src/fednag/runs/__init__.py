"""Runs on disk: built from experiment files, executed, resumed, read."""
