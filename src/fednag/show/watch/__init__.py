"""Runs followed while they are made: read again and again, never written to."""
