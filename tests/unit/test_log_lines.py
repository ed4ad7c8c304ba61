"""Known lines of the server's log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from releases import log_lines
from releases.log_lines import LOG_LINES, PHASES, LogLine, classify, drained, phase_of, scan
from releases.table import RELEASES, get_release

# Printed by SGLang 0.5.22 on its CPU device, from start to a stop without requests.
RUN = """\
[2026-11-30 04:08:17] Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit
[2026-11-30 04:08:17] server_args={'model_path': '/m', 'tokenizer_path': '/m', 'api_key': 'EXAMPLE'}
[2026-11-30 04:08:48] Init parallel begin.
[2026-11-30 04:08:48] Init parallel ends. elapsed=0.16 s
[2026-11-30 04:08:51] Ignore import error when loading sglang.srt.models.inkling: No module
[2026-11-30 04:08:52] Load weight begin. avail mem=20.88 GB
Multi-thread loading shards:   0% Completed | 0/1 [00:00<?, ?it/s]
[2026-11-30 04:08:52] Load weight end. elapsed=0.16 s, type=Qwen2ForCausalLM, avail mem=20.87 GB
[2026-11-30 04:08:53] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 20000
[2026-11-30 04:08:53] Memory pool end. avail mem=20.83 GB
[2026-11-30 04:08:53] INFO:     Started server process [16298]
[2026-11-30 04:08:54] INFO:     Application startup complete.
[2026-11-30 04:08:54] INFO:     Uvicorn running on http://127.0.0.1:32012 (Press CTRL+C to quit)
[2026-11-30 04:08:55] INFO:     127.0.0.1:38864 - "POST /generate HTTP/1.1" 200 OK
[2026-11-30 04:08:55] The server is fired up and ready to roll!
[2026-11-30 04:08:55] SIGTERM received. signum=None frame=None. Draining requests and shutting down...
[2026-11-30 04:09:00] Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].
[2026-11-30 04:09:00] INFO:     Shutting down
""".splitlines()


@pytest.mark.parametrize("entry", LOG_LINES, ids=lambda e: e.id)
def test_every_sample_is_recognised_as_its_own_entry(entry: LogLine) -> None:
    for line in entry.sample:
        found = classify(line)
        assert found is not None
        assert found.id == entry.id, line


def test_samples_are_recognised_with_a_prefix_of_the_journal_and_in_colour() -> None:
    for entry in LOG_LINES:
        line = f"Nov 30 04:08:35 n1 sglang[42]: \x1b[1;33m{entry.sample[0]}\x1b[0m"
        found = classify(line)
        assert found is not None
        assert found.id == entry.id


def test_an_unknown_key_and_an_entry_without_a_sample_are_refused() -> None:
    good = LOG_LINES[0].model_dump()
    for bad in (good | {"surprise": 1}, good | {"sample": []}, good | {"pattern": "("}):
        with pytest.raises(ValidationError):
            LogLine.model_validate(bad)


def test_a_repeated_id_is_refused() -> None:
    text = """
lines:
  - &a {id: x, level: noise, pattern: x, releases: ">=0.5.19", meaning: xxx, advice: xxx,
        sample: [x], source: xxx, basis: seen}
  - *a
"""
    with pytest.raises(ValueError, match="twice"):
        log_lines.load_log_lines(text)


def test_a_start_shows_its_phases_in_order() -> None:
    seen = [phase_of(RUN[:n]) for n in range(len(RUN) + 1)]
    order = [p for i, p in enumerate(seen) if p is not None and p not in seen[:i]]
    assert order == list(PHASES)
    assert seen[0] is None


def test_a_phase_does_not_go_back_when_a_draft_model_loads_later() -> None:
    assert (
        phase_of(["Capture target decode CUDA graph begin.", "Load weight begin."]) == "compiling"
    )


def test_a_sound_run_has_nothing_fatal() -> None:
    assert [f.entry.id for f in scan(RUN, get_release("0.5.22")) if f.entry.is_fatal] == []


def test_a_line_that_may_hold_a_key_is_never_given_back() -> None:
    assert "EXAMPLE" not in repr([(f.line, f.values) for f in scan(RUN)])
    # Not even when the line also looks like another entry.
    line = "server_args={'api_key': 'EXAMPLE', 'x': 'address already in use'}"
    (found,) = scan([line])
    assert found.entry.secret
    assert found.line == ""


def test_a_stop_drained_only_if_the_log_says_so() -> None:
    remaining = "Gracefully exiting... Remaining number of requests {}. Remaining requests x."
    assert drained(RUN)
    assert drained([remaining.format(2), remaining.format(0)])
    assert not drained([remaining.format(2)])
    assert not drained([])
    assert not drained(["Signal SIGTERM received while health check failed. Force exiting."])


def test_ten_requests_that_remain_are_not_none() -> None:
    (found,) = scan(
        ["Gracefully exiting... Remaining number of requests 10. Remaining requests x."]
    )
    assert (found.entry.id, found.values["remaining"]) == ("draining", "10")


def test_findings_count_and_place_their_lines() -> None:
    full = "KV cache pool is full. Retract requests. #retracted_reqs: 1"
    (found,) = scan(["x", full, "y", full + "\n"])
    assert (found.first, found.last, found.count, found.line) == (2, 4, 2, full)


def test_lines_of_one_release_are_not_looked_for_in_another() -> None:
    line = "RuntimeError: Failed to build JIT module fused_eh_norm in /c"
    assert classify(line, RELEASES["0.5.19"]) is None
    assert classify(line, RELEASES["0.5.22"]) is not None


def test_every_fatal_line_has_a_sentence_and_a_way_out() -> None:
    for entry in LOG_LINES:
        assert entry.meaning.endswith(".")
        assert entry.advice.endswith(".")
        assert entry.source


@given(st.text())
def test_any_text_can_be_classified(line: str) -> None:
    found = classify(line)
    assert found is None or found in LOG_LINES
