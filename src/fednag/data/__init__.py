"""Data sets known by name, tables in files, and how samples are dealt to workers."""
