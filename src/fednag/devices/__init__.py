"""Devices and links: fleets, their delays, and when a round on them is over."""
