"""The request that proves a service answers, by the service's kind."""

from __future__ import annotations

import json
from dataclasses import dataclass

from plans.pair import asked_alone
from plans.wishes import Service
from releases.table import get_release, ready_path

FOLLOWERS_PATH = "/health"
"""What a rank answers that is not 0, with 200 once its schedulers are ready (srt/utils/common.py)."""

MAX_TOKENS = 64
"""Tokens the probe asks for: enough for text, soon done on the slowest GPU."""


@dataclass(frozen=True)
class Probe:
    """One ordinary request through the OpenAI-compatible API."""

    path: str
    body: str  # JSON
    expect: str  # a basic regular expression that a good answer's body matches, for grep


def probes(service: Service) -> tuple[Probe, ...]:
    """Return the requests to try, in order: the next one where a model refuses the one before.

    A base model has no chat template and refuses a chat with status 400.
    """
    name = service.public_name
    match service.kind:
        case "generate":
            # Sampled, not greedy: the sampler has kernels of its own, and a start that
            # never compiled them proves too little (vllm-project/vllm#49497).
            common: dict[str, object] = {
                "model": name,
                "max_tokens": MAX_TOKENS,
                "temperature": 0.7,
                **asked_alone(service),
            }
            question = "Say hello in one short sentence."
            return (
                _probe(
                    "/v1/chat/completions",
                    {**common, "messages": [{"role": "user", "content": question}]},
                    '"completion_tokens": *[1-9]',
                ),
                _probe(
                    "/v1/completions",
                    {**common, "prompt": "The capital of France is"},
                    '"completion_tokens": *[1-9]',
                ),
            )
        case "embed":
            return (
                _probe("/v1/embeddings", {"model": name, "input": "hello"}, '"embedding": *\\['),
            )
        case "rerank":
            return (
                _probe(
                    "/v1/rerank",
                    {"model": name, "query": "hello", "documents": ["hello", "goodbye"]},
                    '"score": *-\\{0,1\\}[0-9]',
                ),
            )


def ready_path_of(service: Service, release: str) -> str:
    """Return the path that answers 200 when a server takes requests, or serves rank 0 that does."""
    return FOLLOWERS_PATH if service.follows else ready_path(get_release(release))


def _probe(path: str, body: dict[str, object], expect: str) -> Probe:
    return Probe(path, json.dumps(body, ensure_ascii=False), expect)
