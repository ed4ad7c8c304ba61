"""Judges what a verify saw: the service is ours, is ready, and has generated text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plans.wishes import Service
from releases.log_lines import Finding, scan
from releases.table import get_release


@dataclass(frozen=True)
class Verdict:
    """Whether the service answers, in one sentence, and what was measured."""

    ok: bool
    sentence: str
    answer: str = ""  # the text that was read, or what a vector or score looked like
    milliseconds: int | None = None  # of the generation
    version: str | None = None  # as the server reported it
    first_answer_seconds: int | None = None  # from start to first correct answer
    phases: tuple[Mapping[str, Any], ...] = ()
    canary: Mapping[str, Any] | None = None  # what its image was found to hold, before the switch
    findings: tuple[Finding, ...] = ()  # known bad lines of its log
    log: tuple[str, ...] = field(default=(), repr=False)  # its last useful lines, where not ok


def parts_of(lines: Iterable[str]) -> dict[str, list[str]]:
    """Return the parts of a verify's output by name; a line belongs to the part above it."""
    parts: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines:
        if line.startswith("@ "):
            current = parts.setdefault(line[2:].strip(), [])
        elif line.startswith(" "):
            current.append(line[1:])
    return parts


def judge(lines: Iterable[str], service: Service, release: str) -> Verdict:
    """Return the verdict over a verify's output. Never raises for any output."""
    parts = parts_of(lines)
    log = parts.get("log", [])
    # SGLang cannot be asked for more than its log where the log itself is gone.
    findings = tuple(f for f in scan(log, get_release(release)) if _is_bad(f))
    problem, answer = _problem(parts, service)
    fatal = [finding for finding in findings if finding.entry.is_fatal]
    if problem is None and fatal:
        problem = f"its log has a line known to be bad: {fatal[-1].entry.meaning}"
    start = _json(parts.get("start", []))
    start = start if isinstance(start, dict) else {}
    canary = _json(parts.get("canary", []))
    first, phases = start.get("first_answer_seconds"), start.get("phases")
    milliseconds = "".join(parts.get("milliseconds", []))
    version = "".join(parts.get("version", [])).removeprefix('"version":').strip('"')
    return Verdict(
        ok=problem is None,
        sentence=problem or "ready, and it generates",
        answer=answer,
        milliseconds=int(milliseconds) if re.fullmatch("[0-9]{1,12}", milliseconds) else None,
        version=version or None,
        first_answer_seconds=first if isinstance(first, int) else None,
        phases=tuple(p for p in phases if isinstance(p, dict)) if isinstance(phases, list) else (),
        canary=canary if isinstance(canary, dict) else None,
        findings=findings,
        log=() if problem is None else useful(log),
    )


def _is_bad(finding: Finding) -> bool:
    return finding.entry.is_fatal or finding.entry.level == "warning"


def useful(log: Iterable[str], most: int = 25) -> tuple[str, ...]:
    """Return the last lines of a log that say something: no blank and no repeated ones."""
    kept: list[str] = []
    for line in log:
        if line.strip() and (not kept or line != kept[-1]):
            kept.append(line)
    return tuple(kept[-most:])


def _problem(parts: Mapping[str, list[str]], service: Service) -> tuple[str | None, str]:
    if "end" not in parts:
        return "the verify was cut off before it ended", ""
    before, after = _properties(parts.get("before", [])), _properties(parts.get("after", []))
    if before.get("ActiveState") != "active":
        return f"its unit is {before.get('ActiveState') or 'not there'}", ""
    status, _ = _answer(parts.get("ready", []))
    if status != "200":
        return f"its ready endpoint says {_status_text(status)}", ""
    names = _model_names(parts.get("models", []))
    if service.public_name not in names:
        seen = ", ".join(names) or "no model"
        return f"port {service.port} answers with {seen}, not with {service.public_name}", ""
    status, body = _answer(parts.get("answer", []))
    if status != "200":
        return f"a generation was answered with {_status_text(status)}: {body[:300]}", ""
    problem, text = _read(body, service)
    if problem:
        return problem, text
    for key in ("InvocationID", "NRestarts"):
        if before.get(key) != after.get(key):
            return "its unit was restarted while it was verified", text
    return None, text


def _status_text(status: str) -> str:
    return (
        "nothing (no connection, or no answer in time)" if status == "000" else f"status {status}"
    )


def _read(body: str, service: Service) -> tuple[str | None, str]:
    document = _json([body])
    try:
        match service.kind:
            case "generate":
                return _read_generation(document)
            case "embed":
                vector = document["data"][0]["embedding"]
                good = bool(vector) and any(float(x) != 0.0 for x in vector)
                return (
                    None if good else "the embedding is empty or all zero"
                ), f"{len(vector)} numbers"
            case "rerank":
                results = document["results"] if isinstance(document, dict) else document
                scores = [float(r.get("score", r.get("relevance_score"))) for r in results]
                return (None if scores else "no score came back"), ", ".join(
                    f"{s:.3g}" for s in scores
                )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
        return f"the answer is not of the form it should have: {body[:300]}", ""


def _read_generation(document: Any) -> tuple[str | None, str]:
    choice = document["choices"][0]
    message = choice.get("message") or {}
    # A thinking model may spend the whole budget on its reasoning: that is text too.
    texts = (message.get("content"), message.get("reasoning_content"), choice.get("text"))
    text = "".join(t for t in texts if isinstance(t, str)).strip()
    tokens = (document.get("usage") or {}).get("completion_tokens") or 0
    if text:
        return None, text
    if choice.get("finish_reason") == "length" and tokens > 0:
        return None, f"(no text within {tokens} tokens)"
    return "the answer has no text", ""


def _properties(lines: Iterable[str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _answer(lines: list[str]) -> tuple[str, str]:
    kept = [line for line in lines if line.strip()]
    if not kept:
        return "000", ""
    return kept[-1].strip(), "\n".join(kept[:-1])


def _model_names(lines: list[str]) -> tuple[str, ...]:
    document = _json([_answer(lines)[1]])
    try:
        return tuple(str(model["id"]) for model in document["data"])
    except (KeyError, TypeError):
        return ()


def _json(lines: Iterable[str]) -> Any:
    try:
        return json.loads("\n".join(lines))
    except (ValueError, RecursionError):
        return None
