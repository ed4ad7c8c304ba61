"""The time limits of a service, and that the drop-in has just these."""

from __future__ import annotations

import math
import re

from hypothesis import given
from hypothesis import strategies as st

from plans.deadlines import RESTART_PAUSE, START_BURST, deadlines
from plans.deployment import drop_in_file, unit_file
from plans.paths import DEPLOYMENTS
from tests.unit import readers
from tests.unit.deployments import CAP, one, plan
from tests.unit.surveys import wish, wishes


@given(
    st.integers(1, 10**6),
    st.floats(0.01, 10**4),
    st.floats(0, 10**5),
    st.floats(1, 10**5),
    st.floats(1, 10**5),
)
def test_a_stop_waits_for_the_queue_and_the_longest_answer(
    cap: int, rate: float, queue: float, silence: float, start: float
) -> None:
    service, _ = wish(
        {
            "tokens_per_second": rate,
            "queue_wait": queue,
            "silence_limit": silence,
            "start_limit": start,
        }
    )
    limits = deadlines(service, cap)
    assert limits.stop >= queue + cap / rate
    assert limits.stop == sum(math.ceil(part.seconds) for part in limits.stop_parts)
    assert limits.arithmetic.endswith(f"= {limits.stop} s")
    assert limits.start_interval >= START_BURST * (limits.start_limit + RESTART_PAUSE)
    assert limits.start_limit >= limits.silence_limit


def drop_in(**service: float) -> tuple[str, dict[str, list[str]]]:
    """Return the drop-in of a service: its text and its settings."""
    launch = one(plan(wanted=wishes(CAP | service))).launch
    assert launch is not None
    text = drop_in_file(launch).text
    return text, readers.unit(text)


def test_the_drop_in_lists_the_parts_that_its_stop_limit_is_the_sum_of() -> None:
    text, settings = drop_in(tokens_per_second=7.3, queue_wait=12.5)
    parts = [int(number) for number in re.findall(r"^# +(\d+) s  ", text, re.MULTILINE)]
    assert len(parts) == 6
    assert settings["TimeoutStopSec"] == [str(sum(parts))]


def test_a_start_that_keeps_failing_reaches_its_limit() -> None:
    # A limit over a shorter time than the starts take would never be reached.
    _, settings = drop_in(start_limit=5000.0)
    (interval,), (burst,) = settings["StartLimitIntervalSec"], settings["StartLimitBurst"]
    assert int(interval) >= int(burst) * (5000 + RESTART_PAUSE)
    assert readers.unit(unit_file().text)["RestartSec"] == [str(RESTART_PAUSE)]


def test_a_start_is_limited_by_silence() -> None:
    assert drop_in(silence_limit=120.0)[1]["TimeoutStartSec"] == ["120"]


def test_the_drop_in_waits_for_the_paths_that_the_service_needs() -> None:
    _, settings = drop_in()
    assert DEPLOYMENTS in settings["RequiresMountsFor"]
    assert "/var/lib/sglang/hub" in settings["RequiresMountsFor"]


def test_docker_gives_the_server_as_long_as_systemd_does() -> None:
    service = one(plan())
    launch = next(f for f in service.files if f.path.endswith("launch.env"))
    words = readers.split_words(readers.environment_file(launch.text)["SGLANG_DOCKER_ARGUMENTS"])
    assert service.launch is not None
    assert f"--stop-timeout={service.launch.limits.stop}" in words
