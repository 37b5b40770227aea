"""The command ``fednag``, also as ``python -m fednag``."""

import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line. Ctrl-C is one sentence, also while what it needs is being loaded."""
    asked: list[int] = []

    def interrupted(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
    try:
        from fednag.cli import main as command

        command()
    except (Exception, KeyboardInterrupt):  # a module that is half loaded may raise anything
        if not asked:
            raise
        print("fednag: interrupted; what was saved is kept", file=sys.stderr)
        sys.exit(130)
    finally:  # from here on Python only tidies up, and would answer with a traceback
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
