"""Six short runs, one after the other, on a machine that knows nothing of their model yet.

    python benchmarks/tiny.py

Prints the seconds they take, and how many of these choosing chunks and threads takes.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

os.environ["FEDNAG_CACHE"] = ""  # nothing is kept, nothing is known

import fednag
from fednag.runs import build

METHODS = ("fednag", "fedavg", "slowmo", "fedprox", "scaffold", "fedadam")


def main() -> None:
    choosing, choose = 0.0, build.choose

    def timed(*given: Any, **options: Any) -> Any:
        nonlocal choosing
        began = time.perf_counter()
        try:
            return choose(*given, **options)
        finally:
            choosing += time.perf_counter() - began

    build.choose = timed
    began = time.perf_counter()
    for method in METHODS:
        fednag.run(method, model="mlp", workers=4, tau=4, iterations=200, batch=32, quiet=True)
    seconds = time.perf_counter() - began
    print(json.dumps({"runs": len(METHODS), "seconds": seconds, "choosing": choosing}))


if __name__ == "__main__":
    main()
