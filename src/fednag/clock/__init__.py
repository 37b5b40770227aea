"""How long a run takes on given devices and links.

A fleet (devices, links, an aggregator) is read from a TOML file with samples or numbers; a run's
records are replayed on it, after the fact; a deadline may leave late workers out while it trains.

>>> from fednag.clock import Transfer
>>> round(Transfer(latency=0.01, seconds_per_byte=8 / 100e6).expected(1_000_000), 4)
0.09
"""
