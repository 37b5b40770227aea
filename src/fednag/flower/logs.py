"""Logs as lines of JSON: Flower's, its HTTP server's and what a run says, in one form."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, cast

LOG = "FEDNAG_LOG"  # "json" in the environment, which processes that are started inherit


def wanted() -> bool:
    return os.environ.get(LOG) == "json"


def line(said: str, level: str = "info", **more: Any) -> str:
    """One line: when, how grave, what."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": level, **more, "said": said})


class JsonLines(logging.Formatter):
    """A log record as such a line; a traceback is in it, and not on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        more: dict[str, Any] = {"logger": record.name, "pid": record.process}
        if record.exc_info:
            more["error"] = self.formatException(record.exc_info)
        return line(record.getMessage().strip(), record.levelname.lower(), **more)


def as_json() -> None:
    """From now on this process's logs, and those of what it starts, are lines of JSON."""
    os.environ[LOG] = "json"
    logger = cast(Any, import_module("flwr.supercore.logger"))
    logger.console_handler.format = JsonLines().format
    uvicorn = cast(Any, import_module("uvicorn.config"))
    uvicorn.LOGGING_CONFIG.update(formatted(uvicorn.LOGGING_CONFIG))  # a default value elsewhere
    http = cast(Any, import_module("flwr.supercore.http_logging"))
    plain = http.get_uvicorn_log_config
    http.get_uvicorn_log_config = lambda *given: formatted(plain(*given))


def formatted(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of ``logging`` with every formatter replaced."""
    name = f"{JsonLines.__module__}.{JsonLines.__qualname__}"
    return {**config, "formatters": {key: {"()": name} for key in config.get("formatters", {})}}
