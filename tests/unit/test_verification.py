"""A verdict is good only where our own service was ready and its text was read."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans.launch import TEMPLATES
from plans.verification import Verdict, judge, parts_of, useful
from plans.wishes import Service
from tests.unit.surveys import wish

RELEASE = "0.5.23"
UNIT = ["ActiveState=active", "SubState=running", "NRestarts=0", "InvocationID=ab", "MainPID=7"]
CHAT = {
    "choices": [{"message": {"content": "Hello!"}, "finish_reason": "stop"}],
    "usage": {"completion_tokens": 3},
}


def service(kind: str = "generate") -> Service:
    """Return a service of this kind."""
    return wish({"kind": kind})[0]


def lines(body: Any = CHAT, *, status: str = "200", **parts: Iterable[str]) -> list[str]:
    """Return the output of a verify; ``parts`` replace or add some of it."""
    text = body if isinstance(body, str) else json.dumps(body)
    shown: dict[str, Iterable[str]] = {
        "before": UNIT,
        "ready": ["", "200"],
        "models": ['{"data": [{"id": "Qwen/Qwen3-8B"}]}', "200"],
        "answer": [*text.split("\n"), status],
        "milliseconds": ["812"],
        "version": ['"version":"0.5.23"'],
        "after": UNIT,
        "start": ['{"first_answer_seconds": 41, "phases": [{"phase": "x", "at_seconds": 1}]}'],
        "log": ["[2026-11-30 04:08:15] The server is fired up and ready to roll!"],
        **parts,
    }
    out = []
    for name, held in shown.items():
        out += [f"@ {name}", *(f" {line}" for line in held)]
    return [*out, "@ end"]


def verdict(shown: Iterable[str], kind: str = "generate") -> Verdict:
    """Return the verdict over this output."""
    return judge(shown, service(kind), RELEASE)


def test_a_generation_that_was_read_is_good() -> None:
    found = verdict(lines())
    assert (found.ok, found.answer) == (True, "Hello!")
    assert (found.milliseconds, found.version, found.first_answer_seconds) == (812, "0.5.23", 41)
    assert found.phases == ({"phase": "x", "at_seconds": 1},)
    assert found.log == ()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"choices": [{"text": " Paris."}], "usage": {"completion_tokens": 2}}, "Paris."),
        ({"choices": [{"message": {"content": None, "reasoning_content": "Hm"}}]}, "Hm"),
        (
            {"choices": [{"message": {}, "finish_reason": "length"}], "usage": {"completion_tokens": 64}},
            "(no text within 64 tokens)",
        ),
    ],
)  # fmt: skip
def test_text_counts_wherever_a_model_puts_it(body: Any, text: str) -> None:
    found = verdict(lines(body))
    assert (found.ok, found.answer) == (True, text)


@pytest.mark.parametrize(
    ("shown", "sentence"),
    [
        (lines()[:-1], "cut off"),
        ([], "cut off"),
        (lines(before=["ActiveState=failed"]), "its unit is failed"),
        (lines(before=[]), "its unit is not there"),
        (lines(ready=["", "503"]), "its ready endpoint says status 503"),
        (lines(ready=["", "000"]), "its ready endpoint says nothing"),
        (lines(models=['{"data": [{"id": "gpt2"}]}', "200"]), "answers with gpt2, not with Qwen"),
        (lines(models=["nonsense", "200"]), "answers with no model"),
        (lines("boom", status="500"), "answered with status 500: boom"),
        (lines("", status="000"), "answered with nothing"),
        (lines({"choices": [{"message": {"content": "  "}}]}), "no text"),
        (lines({"choices": []}), "not of the form"),
        (lines("<html>"), "not of the form"),
        (lines("[" * 100_000), "not of the form"),
        (lines(after=[*UNIT[:2], "NRestarts=1", *UNIT[3:]]), "restarted while it was verified"),
        (lines(after=[*UNIT[:3], "InvocationID=cd"]), "restarted while it was verified"),
    ],
)
def test_anything_else_is_bad_and_says_why(shown: list[str], sentence: str) -> None:
    found = verdict(shown)
    assert not found.ok
    assert sentence in found.sentence


def test_a_line_known_to_be_bad_spoils_a_good_answer() -> None:
    fatal = (
        "[2026-11-30 04:08:35] Signal SIGTERM received while health check failed. Force exiting."
    )
    found = verdict(lines(log=[fatal, "", "other", "other"]))
    assert not found.ok
    assert "known to be bad" in found.sentence
    assert found.log == (fatal, "other")


@pytest.mark.parametrize(
    ("kind", "body", "ok"),
    [
        ("embed", {"data": [{"embedding": [0.1, 0]}]}, True),
        ("embed", {"data": [{"embedding": [0.0, 0]}]}, False),
        ("embed", {"data": [{"embedding": []}]}, False),
        ("embed", {"data": [{"embedding": [10**400]}]}, False),
        ("rerank", [{"score": -1.5}], True),
        ("rerank", {"results": [{"relevance_score": 0.2}]}, True),
        ("rerank", [], False),
        ("rerank", [{}], False),
    ],
)
def test_vectors_and_scores_are_read_too(kind: str, body: Any, ok: bool) -> None:
    assert verdict(lines(body), kind).ok is ok


@pytest.mark.parametrize("text", ["", "x", "²", "9" * 5000, "-1"])
def test_a_time_that_is_no_number_is_no_time(text: str) -> None:
    assert verdict(lines(milliseconds=[text])).milliseconds is None


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["choices", "message", "content", "usage", "completion_tokens", "data", "text",
                 "embedding", "results", "score", "finish_reason", "id", "first_answer_seconds"]
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)  # fmt: skip
KINDS = st.sampled_from(["generate", "embed", "rerank"])


@given(
    st.lists(st.one_of(st.text(), st.sampled_from(["@ answer", "@ end", " 200", "@ before"]))),
    KINDS,
)
def test_no_output_makes_the_judge_fail(shown: list[str], kind: str) -> None:
    assert verdict(shown, kind).sentence


@given(JSON, JSON, JSON, KINDS)
def test_no_answer_makes_the_judge_fail(body: Any, models: Any, start: Any, kind: str) -> None:
    shown = lines(json.dumps(body), models=[json.dumps(models), "200"], start=[json.dumps(start)])
    assert verdict(shown, kind).sentence
    assert verdict(lines(json.dumps(body)), kind).sentence


def test_lines_belong_to_the_part_above_them() -> None:
    assert parts_of(["junk", "@ a", " 1", "@ b", "@ a", "  2"]) == {"a": ["1", " 2"], "b": []}


def test_the_useful_lines_of_a_log_are_its_last_without_repetition() -> None:
    assert useful(["a", "", "b", "b", " "], most=2) == ("a", "b")


GENERATION = (TEMPLATES / "generation.sh").read_text(encoding="utf-8")
ONE = '{"choices": [], "usage": {"completion_tokens": 1}}'
MORE = '{"choices": [], "usage": {"completion_tokens": 12}}'


@pytest.mark.parametrize("shell", [["dash"], ["busybox", "sh"]])
@pytest.mark.parametrize(
    ("answers", "kept", "asked"),
    [
        ([f"{MORE}\n200"], MORE, 1),
        ([f"{ONE}\n200", f"{MORE}\n200"], MORE, 2),
        ([f"{ONE}\n200"] * 4, ONE, 3),
        (["no chat\n400", f"{MORE}\n200"], "no chat", 1),
        (["\n000", f"{MORE}\n200"], "", 1),
    ],
)
def test_an_answer_of_one_token_is_asked_for_again_and_no_other(
    tmp_path: Path, shell: list[str], answers: list[str], kept: str, asked: int
) -> None:
    for number, answer in enumerate(answers):
        (tmp_path / str(number + 1)).write_text(answer + "\n")
    http = f'http() {{ echo "$2" >>{tmp_path}/asked; cat {tmp_path}/$(wc -l <{tmp_path}/asked); }}'
    program = f"base=http://a\n{http}\n{GENERATION}\ngeneration /v1/completions body\n"
    done = subprocess.run(shell, input=program, text=True, capture_output=True, check=True)
    assert done.stdout.split("\n")[0] == kept
    assert (tmp_path / "asked").read_text().split() == ["http://a/v1/completions"] * asked
