"""Federated learning on real machines: fednag on Flower. The only room that imports flwr."""

import sys
from pathlib import Path

PACKAGE = "fednag_app"  # of an app that `fednag flower init` writes


def app_folder() -> Path | None:
    """Where Flower has put the app that this process was started for."""
    home = getattr(sys.modules.get(PACKAGE), "__file__", None)
    return Path(home).parent if home else None
