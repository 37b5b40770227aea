"""``python -m fednag`` is the command ``fednag``."""

from fednag.cli import main

main()
