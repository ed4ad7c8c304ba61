"""Harder than ready: what a new deployment must do before it counts, and what that came to.

A server that answers one question may still lose eight at a time, end a stream short, keep the
requests of clients that have gone, or return nothing from its grammar. Each is one try here, with
one sentence for what went wrong. Pure: the requests, and the verdict over what came back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plans.network import argument
from plans.pair import asked_alone, half_of
from plans.probe import MAX_TOKENS, Probe, probes
from plans.verification import ENDED_AT_ONCE, answer_of, parts_of, properties_of, read_answer
from plans.wishes import Service

AT_ONCE = 8
"""Generations that are asked for at the same time."""

LONG_TOKENS = 2000
"""Tokens of the answer whose client goes away, unless the service's cap is lower."""

CANCEL_AFTER_S = 1
"""Seconds after which that client goes away."""

CHOICES = ("yes", "no")
"""What the structured answers may hold: short, so that any model comes to their end."""

_QUESTION = "Is water wet? Answer in the form that was asked for."


@dataclass(frozen=True)
class Try:
    """One thing that is tried: its name, and the request by chat and, for a base model, plain."""

    name: str  # a word of its part of the output
    chat: Probe
    plain: Probe
    cancels: bool = False


def tries(service: Service) -> tuple[Try, ...]:
    """Return what is tried beside ``AT_ONCE`` ordinary requests, for this service's arguments."""
    if service.kind != "generate":
        return ()
    found = [
        _try(service, "stream", {"stream": True, "stream_options": {"include_usage": True}}),
        _try(
            service,
            "cancel",
            {
                "stream": True,
                "ignore_eos": True,
                "max_tokens": min(LONG_TOKENS, service.output_cap or LONG_TOKENS),
            },
            cancels=True,
        ),
    ]
    if half_of(service):
        return tuple(found)  # a grammar starts from the first token, which only its other half has
    if argument(service, "grammar-backend") != "none":
        schema = {
            "type": "object",
            "properties": {"answer": {"type": "string", "enum": list(CHOICES)}},
            "required": ["answer"],
            "additionalProperties": False,
        }
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        found.append(_try(service, "schema", {"response_format": wanted}))
    if argument(service, "tool-call-parser") is not None:
        parameters = {
            "type": "object",
            "properties": {"answer": {"type": "string", "enum": list(CHOICES)}},
            "required": ["answer"],
        }
        tool = {"name": "answer", "description": "Answers.", "parameters": parameters}
        asked = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
        found.append(_try(service, "tool", asked))
    return tuple(found)


def _try(service: Service, name: str, more: Mapping[str, Any], *, cancels: bool = False) -> Try:
    ours = {"model": service.public_name, "max_tokens": MAX_TOKENS, "temperature": 0.7}
    common = {**ours, **asked_alone(service), **more}
    chat = {**common, "messages": [{"role": "user", "content": _QUESTION}]}
    return Try(
        name,
        Probe("/v1/chat/completions", json.dumps(chat), ""),
        Probe("/v1/completions", json.dumps({**common, "prompt": _QUESTION}), ""),
        cancels,
    )


def ordinary(service: Service) -> tuple[Probe, Probe]:
    """Return the ordinary request by chat, and the plain one for a model without a template."""
    both = probes(service)
    return both[0], both[-1]


# --- the verdict


def problems_of(lines: Iterable[str], service: Service) -> tuple[str, ...]:
    """Return what went wrong, one sentence each, the first the most telling; () where nothing did.

    ``lines``: what the program of ``templates/verify-hard.sh.j2`` printed. Never raises for any
    output; what is not there was not proved.
    """
    parts = parts_of(lines)
    if "end" not in parts:
        return ("the harder verify was cut off before it ended",)
    found = [*_at_once(parts, service)]
    chat = "".join(parts.get("chat", [])) == "yes"
    for one in tries(service):
        if not chat and one.name == "tool":
            continue  # tools are a matter of the chat template, which it has none of
        if one.name not in parts:
            found.append(f"the try {one.name} left no answer")
        elif problem := _problem(one, parts[one.name]):
            found.append(problem)
    status, _ = answer_of(parts.get("ready", []))
    if status != "200":
        found.append(f"its ready endpoint says {status} after that")
    before, after = (properties_of(parts.get(name, [])) for name in ("before", "after"))
    keys = ("InvocationID", "NRestarts", "MainPID")
    if not before or any(before.get(key) != after.get(key) for key in keys):
        found.insert(0, "it ended or was restarted while it was proved")
    return tuple(found)


def _at_once(parts: Mapping[str, list[str]], service: Service) -> list[str]:
    bad, empty = [], 0
    for number in range(1, AT_ONCE + 1):
        status, body = answer_of(parts.get(f"once{number}", []))
        if status != "200":
            bad.append(f"status {status}" if status != "000" else "no answer")
        elif problem := read_answer(body, service)[0]:
            bad.append(problem)
            empty += problem == ENDED_AT_ONCE
    # They are sampled: one may end with its first token. Most of them do not.
    if len(bad) == empty <= AT_ONCE // 2:
        return []
    return [f"of {AT_ONCE} generations at a time {len(bad)} failed: {bad[0]}"]


def _problem(one: Try, lines: list[str]) -> str | None:
    if one.cancels:
        # That its client went away leaves no status; a refusal comes before that.
        status, body = answer_of(lines)
        refused = status[:1] in ("4", "5")
        return f"a long stream was refused with status {status}: {body[:200]}" if refused else None
    status, body = answer_of(lines)
    what = {"stream": "a stream", "schema": "a JSON schema", "tool": "a tool call"}[one.name]
    if status != "200":
        return f"{what} was answered with status {status}: {body[:200]}"
    try:
        match one.name:
            case "stream":
                return _stream(body)
            case "schema":
                return _schema(json.loads(body))
            case _:
                return _tool(json.loads(body))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return f"{what} was answered in a form it should not have: {body[:200]}"


def _stream(body: str) -> str | None:
    events = [line.removeprefix("data: ").strip() for line in body.splitlines() if line.strip()]
    if "[DONE]" not in events:
        return "a stream ended without [DONE]"
    documents = [json.loads(event) for event in events if event.startswith("{")]
    tokens = max(int((d.get("usage") or {}).get("completion_tokens") or 0) for d in documents)
    if tokens == 0:
        return "a stream ended without usage, or with no tokens"
    pieces = [_text(choice) for d in documents for choice in d.get("choices") or ()]
    # One that ended with its first token has none: whether there is text, the others prove.
    if not "".join(pieces).strip() and 1 < tokens < MAX_TOKENS:
        return "a stream had no text"
    return None


def _text(choice: Mapping[str, Any]) -> str:
    delta = choice.get("delta") or choice.get("message") or {}
    texts = (delta.get("content"), delta.get("reasoning_content"), choice.get("text"))
    return "".join(text for text in texts if isinstance(text, str))


def _schema(document: Mapping[str, Any]) -> str | None:
    choice = document["choices"][0]
    message = choice.get("message") or {}
    text = message.get("content") or choice.get("text") or ""
    # A thinking model, or one that fills up with blanks, may not come to the end of it.
    if choice.get("finish_reason") == "length":
        return None
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or answer.get("answer") not in CHOICES:
        return f"an answer with a JSON schema did not keep to it: {str(text)[:200]!r}"
    return None


def _tool(document: Mapping[str, Any]) -> str | None:
    choice = document["choices"][0]
    if choice.get("finish_reason") == "length":
        return None
    calls = list((choice.get("message") or {}).get("tool_calls") or [])
    names = [call["function"]["name"] for call in calls]
    if names[:1] != ["answer"]:
        return "a request that asked for a tool call got none"
    if not isinstance(json.loads(calls[0]["function"]["arguments"]), dict):
        return "the arguments of a tool call are no object"
    return None
