"""How long a stop may take and how often a start may fail: the arithmetic, part by part."""

from __future__ import annotations

import math
from dataclasses import dataclass

from plans.wishes import Service

WATCH = 5.0
"""Seconds until SGLang's watchdog notices SIGTERM: it sleeps 5 s a round (tokenizer_manager.py)."""

POLL = 5.0
"""Seconds between two looks at the requests that remain (same place)."""

SCHEDULERS = 15.0
"""Seconds it waits for its schedulers to exit (_SCHEDULER_EXIT_TIMEOUT_SECS, same file)."""

PROCESS_TREE = 60.0
"""Seconds it waits for the rest of its process tree (kill_process_tree, same file)."""

RESTART_PAUSE = 10
"""Seconds between two starts: RestartSec of the unit."""

TRICKLE = 16384
"""Bytes a second: a start that reads less than this on average over its silence_limit makes no
progress. SGLang's own watchdog reads /proc each second, in a server that hangs as well: 71 bytes/s in
each of two processes (seen on 0.5.23). Weights that come at this rate take 17 hours for a gigabyte.
"""

START_BURST = 5
"""Starts that may fail in a row before systemd gives up."""


@dataclass(frozen=True)
class Part:
    """One part of a deadline."""

    what: str
    seconds: float

    @property
    def seconds_text(self) -> str:
        """Its seconds, rounded up."""
        return str(math.ceil(self.seconds))


@dataclass(frozen=True)
class Deadlines:
    """Every time limit of one service, in seconds."""

    stop_parts: tuple[Part, ...]
    silence_limit: int
    start_limit: int
    start_interval: int

    @property
    def stop(self) -> int:
        """TimeoutStopSec: the sum of its parts, each rounded up."""
        return sum(math.ceil(part.seconds) for part in self.stop_parts)

    @property
    def arithmetic(self) -> str:
        """The sum on one line, for the plan."""
        terms = " + ".join(part.seconds_text for part in self.stop_parts)
        return f"{terms} = {self.stop} s"


def deadlines(service: Service, output_cap: int) -> Deadlines:
    """Work out the limits of a service whose answers have ``output_cap`` tokens at most.

    A stop waits for the longest answer that the server is made to allow
    (SGLANG_MAX_NEW_TOKENS_LIMIT), at the slowest rate the operator expects.
    """
    slowest = service.tokens_per_second
    # It ends once rank 0, which is stopped at the same time, has ended or told it.
    after = (Part("after rank 0, until its own processes have ended", PROCESS_TREE),)
    start_limit = math.ceil(max(service.start_limit, service.silence_limit))
    return Deadlines(
        stop_parts=(
            Part("a request may wait in the queue (queue_wait)", service.queue_wait),
            Part(
                f"the longest answer: {output_cap} tokens (output_cap) ÷ {slowest:g} tokens/s "
                "(tokens_per_second, the slowest of one request)",
                output_cap / slowest,
            ),
            Part("until the server notices the signal", WATCH),
            Part("until it sees that no request remains", POLL),
            Part("until its schedulers have ended", SCHEDULERS),
            Part("until the rest of its processes have ended", PROCESS_TREE),
            *(after if service.follows else ()),
        ),
        silence_limit=math.ceil(service.silence_limit),
        start_limit=start_limit,
        start_interval=START_BURST * (start_limit + RESTART_PAUSE),
    )
