"""The harder verify: what is asked, and one sentence for each thing that went wrong."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans.proof_scripts import keep_logs, soak, verify_hard
from plans.proving import AT_ONCE, problems_of, tries
from plans.wishes import Service

SHOWN = ["ActiveState=active", "NRestarts=0", "InvocationID=ab", "MainPID=42"]


def served(**keys: Any) -> Service:
    return Service.model_validate({"name": "chat", "model": "/srv/m", "served_name": "m", **keys})


def chat(
    content: str | None = "hello", finish: str = "stop", tokens: int = 3, **message: Any
) -> list[str]:
    choice = {"message": {"content": content, **message}, "finish_reason": finish}
    return [json.dumps({"choices": [choice], "usage": {"completion_tokens": tokens}}), "", "200"]


STREAM = [
    'data: {"choices": [{"delta": {"content": "hel"}}]}',
    'data: {"choices": [{"delta": {"content": "lo"}}]}',
    'data: {"choices": [], "usage": {"completion_tokens": 2}}',
    "data: [DONE]",
    "200",
]

TOOL = {"function": {"name": "answer", "arguments": '{"answer": "yes"}'}}


def printed(**parts: list[str] | None) -> list[str]:
    """Return what the program prints where all is well, with some parts changed or left out."""
    whole: dict[str, list[str] | None] = {
        "before": SHOWN,
        "chat": ["yes"],
        **{f"once{n}": chat() for n in range(1, AT_ONCE + 1)},
        "stream": STREAM,
        "cancel": ["200"],
        "schema": chat('{"answer": "no"}'),
        "tool": chat(None, "tool_calls", tool_calls=[TOOL]),
        "ready": ["200"],
        "after": SHOWN,
        "end": [],
        **parts,
    }
    return [
        line
        for name, lines in whole.items()
        if lines is not None
        for line in (f"@ {name}", *(f" {one}" for one in lines))
    ]


WITH_TOOLS = served(arguments={"tool_call_parser": "qwen25"})


def test_a_service_that_stands_everything_has_no_problem() -> None:
    assert problems_of(printed(), WITH_TOOLS) == ()
    assert problems_of(printed(tool=None), served()) == ()


def test_what_is_tried_follows_from_the_arguments() -> None:
    def names(**keys: Any) -> list[str]:
        return [one.name for one in tries(served(**keys))]

    assert names() == ["stream", "cancel", "schema"]
    assert names(arguments={"grammar-backend": "none"}) == ["stream", "cancel"]
    assert names(arguments={"tool-call-parser": "qwen25"})[-1] == "tool"
    assert names(kind="embed") == []


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"once3": chat("")}, "of 8 generations at a time 1 failed: the answer has no text"),
        ({"once1": ["", "000"], "once2": ["{}", "500"]}, "at a time 2 failed: no answer"),
        ({"stream": [*STREAM[:-2], "200"]}, "a stream ended without [DONE]"),
        ({"stream": [*STREAM[:2], *STREAM[3:]]}, "a stream ended without usage"),
        ({"stream": [STREAM[2], *STREAM[3:]]}, "a stream had no text"),
        ({"stream": ["200"]}, "a stream ended without [DONE]"),
        ({"cancel": ["503"]}, "a long stream was refused with status 503"),
        ({"schema": chat("hello")}, "with a JSON schema did not keep to it: 'hello'"),
        ({"schema": chat('{"answer": "maybe"}')}, "did not keep to it"),
        ({"schema": ["no grammar", "400"]}, "a JSON schema was answered with status 400"),
        ({"tool": chat("I would call it")}, "asked for a tool call got none"),
        ({"tool": ["[]", "200"]}, "a tool call was answered in a form it should not have"),
        ({"ready": ["503"]}, "its ready endpoint says 503 after that"),
        ({"after": [*SHOWN[:1], "NRestarts=1", *SHOWN[2:]]}, "ended or was restarted"),
        ({"end": None}, "cut off"),
        ({"stream": None}, "the try stream left no answer"),
    ],
)
def test_each_failure_is_one_sentence(parts: dict[str, Any], sentence: str) -> None:
    (problem,) = problems_of(printed(**parts), WITH_TOOLS)
    assert sentence in problem
    assert "\n" not in problem


def at_once(empty: int) -> dict[str, list[str] | None]:
    """Answers of which so many ended with their first token."""
    return {f"once{n}": chat("", tokens=1) for n in range(1, empty + 1)}


def test_a_few_sampled_answers_may_end_with_their_first_token_but_most_may_not() -> None:
    ended = 'data: {"choices": [], "usage": {"completion_tokens": 1}}'
    assert problems_of(printed(**at_once(4), stream=[ended, *STREAM[3:]]), served()) == ()
    (problem,) = problems_of(printed(**at_once(5)), served())
    assert "at a time 5 failed: the answer has no text: it ended with its first token" in problem
    (problem,) = problems_of(printed(**{**at_once(2), "once3": ["", "000"]}), served())
    assert "at a time 3 failed" in problem


def test_an_answer_that_comes_to_its_limit_proves_the_grammar_all_the_same() -> None:
    assert problems_of(printed(schema=chat('{ "ans', "length")), WITH_TOOLS) == ()


@given(st.lists(st.text(max_size=30), max_size=30))
def test_no_output_raises_and_none_but_a_whole_one_is_good(lines: list[str]) -> None:
    assert problems_of(lines, WITH_TOOLS)
    assert isinstance(problems_of([*printed(), *lines], WITH_TOOLS), tuple)


@pytest.mark.parametrize("shell", [["dash", "-n"], ["busybox", "sh", "-n"]])
def test_the_programs_are_posix_shell(shell: list[str]) -> None:
    programs = (
        verify_hard(WITH_TOOLS, "0.5.23", 7),
        verify_hard(served(kind="embed"), "0.5.23", 7),
        soak(WITH_TOOLS, "0.5.23", 7, 60),
        soak(served(kind="rerank"), "0.5.23", 7, 0.5),
        keep_logs("chat", 7, "ab", '{"result": "no"}\n'),
        keep_logs("chat", 7, "", None),
    )
    for program in programs:
        done = subprocess.run(shell, input=program, text=True, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
