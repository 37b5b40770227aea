"""The paper's experiments, run again and judged.

Every figure is a TOML file: what the paper did, its series, how each scale departs from it, and
named checks whose criteria stand there before anything runs. ``figure`` reads such files, ``jobs``
runs what they describe, ``kept`` turns runs into small records, ``quantities`` and ``checks`` judge
them, ``page`` writes tables.
"""
