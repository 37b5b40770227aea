"""``python -m fednag.cluster FOLDER`` does a task; with ``--ray``, has Ray do all in a folder."""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["--ray"]:
        from fednag.cluster.ray import drive

        return drive(Path(words[1]), words[2] if len(words) > 2 else None)
    from fednag.cluster.tasks import do

    return do(Path(words[0]), signals=True)


if __name__ == "__main__":
    sys.exit(main())
