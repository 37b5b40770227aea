"""The one exception users are meant to see."""


class FednagError(Exception):
    """Something the user can put right.

    Its text is one sentence that names the field or file and the remedy; the command line prints it
    without a traceback and exits with code 2.

    >>> import fednag
    >>> try:
    ...     fednag.run("fednag", tau=0)
    ... except fednag.FednagError as error:
    ...     print(error)
    run: training.tau: 0 is not allowed; it should be at least 1
    """


class BusyError(FednagError):
    """Another process is writing the run."""


def not_installed(what: str, extra: str) -> FednagError:
    """The error for what an extra of the package would bring."""
    return FednagError(
        f"{what} is not installed; pip install 'fednag[{extra}]', or in a clone "
        f"make install EXTRAS={extra}"
    )
