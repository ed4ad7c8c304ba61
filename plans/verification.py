"""Judges what a verify saw: the service is ours, is ready, and has generated text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from plans.pair import half_of
from plans.wishes import Service
from releases.log_lines import Finding, scan
from releases.table import get_release

PAIR_LIMIT_S = 60
"""Seconds within which the other half is found, and a pair behind the door generates."""

ENDED_AT_ONCE = "the answer has no text: it ended with its first token"
"""What a sampled answer may do now and then, and is wrong where it does it every time."""


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
        sentence=problem or _good(service, parts),
        answer=answer,
        milliseconds=int(milliseconds) if re.fullmatch("[0-9]{1,12}", milliseconds) else None,
        version=version or None,
        first_answer_seconds=first if isinstance(first, int) else None,
        phases=tuple(p for p in phases if isinstance(p, dict)) if isinstance(phases, list) else (),
        canary=canary if isinstance(canary, dict) else None,
        findings=findings,
        log=() if problem is None else useful(log),
    )


def _good(service: Service, parts: Mapping[str, list[str]]) -> str:
    if half := half_of(service):
        pair = parts.get("pair")
        behind = "" if pair is None else "; behind the door "
        if pair is not None:
            behind += "a pair generates" if pair == ["answers"] else "its other half is not there"
        return f"ready, and it generates alone, as a {half} half{behind}"
    if service.follows:
        return f"ready, as rank {service.rank} of {len(service.nodes)} for {service.nodes[0]}"
    return "ready, and it generates"


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
    before, after = properties_of(parts.get("before", [])), properties_of(parts.get("after", []))
    if before.get("ActiveState") != "active":
        return f"its unit is {before.get('ActiveState') or 'not there'}", ""
    status, _ = answer_of(parts.get("ready", []))
    if status != "200":
        return f"its ready endpoint says {_status_text(status)}", ""
    if service.follows:
        return _restarted(before, after), ""
    names = _model_names(parts.get("models", []))
    if service.public_name not in names:
        seen = ", ".join(names) or "no model"
        return f"port {service.port} answers with {seen}, not with {service.public_name}", ""
    status, body = answer_of(parts.get("answer", []))
    if status != "200":
        return f"a generation was answered with {_status_text(status)}: {body[:300]}", ""
    problem, text = read_answer(body, service)
    if problem:
        return problem, text
    if parts.get("pair") in (["fails"], ["tried"]):
        return (
            f"it answers alone, and behind the door no prefill/decode pair generates within "
            f"{PAIR_LIMIT_S} s: journalctl -u sglang-door"
        ), text
    return _restarted(before, after), text


def _restarted(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    same = all(before.get(key) == after.get(key) for key in ("InvocationID", "NRestarts"))
    return None if same else "its unit was restarted while it was verified"


def _status_text(status: str) -> str:
    return (
        "nothing (no connection, or no answer in time)" if status == "000" else f"status {status}"
    )


def read_answer(body: str, service: Service) -> tuple[str | None, str]:
    """Return what is wrong with the answer to an ordinary request, or None, and its text."""
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
    return (ENDED_AT_ONCE if tokens == 1 else "the answer has no text"), ""


def properties_of(lines: Iterable[str]) -> dict[str, str]:
    """Return the properties of a unit that ``systemctl show`` printed."""
    return dict(line.split("=", 1) for line in lines if "=" in line)


def answer_of(lines: list[str]) -> tuple[str, str]:
    """Return status and body of what ``http`` printed; 000 where nothing answered."""
    kept = [line for line in lines if line.strip()]
    if not kept:
        return "000", ""
    return kept[-1].strip(), "\n".join(kept[:-1])


def _model_names(lines: list[str]) -> tuple[str, ...]:
    document = _json([answer_of(lines)[1]])
    try:
        return tuple(str(model["id"]) for model in document["data"])
    except (KeyError, TypeError):
        return ()


def _json(lines: Iterable[str]) -> Any:
    try:
        return json.loads("\n".join(lines))
    except (ValueError, RecursionError):
        return None
