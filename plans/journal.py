"""Keeps the keys that a server logs out of the node's journal."""

from __future__ import annotations

import json

from facts.records import Unknown, known
from plans.sources import secret_data
from plans.wishes import Service


def journal_filter(service: Service, systemd: int | Unknown) -> str | None:
    """Return the pattern of lines that must not reach the journal, or None where nothing filters.

    Takes the service and the node's version of systemd.
    """
    data = secret_data()["journal"]
    if not service.keys or not known(systemd) or systemd < data["filter_since"]:
        return None
    return str(data["pattern"])


def logging_config(service: Service, systemd_filters: bool) -> str | None:
    """Return a configuration of SGLang's logging that keeps the keys out of it, or None.

    For a systemd that cannot filter; an operator who configures the log has their way.
    """
    data = secret_data()["journal"]
    if not service.keys or systemd_filters or data["config_variable"] in service.environment:
        return None
    given = service.arguments.get("log-level", service.arguments.get("log_level", "info"))
    quiet = {"level": "WARNING"}
    config = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "plain": {"format": "[%(asctime)s] %(message)s", "datefmt": "%Y-%m-%d %H:%M:%S"}
        },
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
        "root": {"level": str(given).upper(), "handlers": ["console"]},
        # SGLang itself quiets the other two in its own configuration.
        "loggers": {data["logger"]: quiet, "httpx": quiet, "httpcore": quiet},
    }
    return json.dumps(config, indent=1) + "\n"
