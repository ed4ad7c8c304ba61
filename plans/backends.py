"""Attention backends that a GPU cannot run: told by the plan, not after the weights are loaded."""

from __future__ import annotations

from facts.records import known
from plans.decision import Decision
from plans.gpus import called, capability_of
from plans.refusals import Refusal
from plans.rules import version_of
from plans.wishes import Service
from releases.table import normalise_flag

FLAGS = ("attention-backend", "prefill-attention-backend", "decode-attention-backend")

MAJORS = {
    "fa3": (8, 9),
    "trtllm_mha": (10,),
    "trtllm_mla": (10, 12),
    "tokenspeed_mla": (10, 12),
    "cutedsl_mla": (10,),
}
"""Majors of the compute capabilities that a backend runs on, where it does not run on all.

From srt/layers/attention/attention_registry.py and srt/arg_groups/overrides.py of the wheels 0.5.22
and 0.5.23; trtllm_mha from https://github.com/sgl-project/sglang/issues/9140 and
srt/arg_groups/model_override_base.py. What is in no list is left to the server.
"""

GOES_EVERYWHERE = "flashinfer or triton"


def backend_refusals(service: Service, decision: Decision) -> list[Refusal]:
    """Return what refuses the attention backends that a service names, for the GPUs it gets."""
    refusals = []
    for name, value in service.arguments.items():
        flag = normalise_flag(name)
        majors = MAJORS.get(str(value)) if flag in FLAGS else None
        if majors is None:
            continue
        for gpu in decision.gpus:
            capability = capability_of(gpu)
            if not known(capability) or (version_of(capability) or (0,))[0] in majors:
                continue
            wanted = " or ".join(f"{major}.x" for major in majors)
            refusals.append(
                Refusal(
                    "BACKEND_NOT_FOR_GPU",
                    f"{flag} {value} on {called(gpu)}, compute capability {capability}",
                    f"compute capability {wanted} for {value}",
                    f"leave {flag} out: the server chooses; or name {GOES_EVERYWHERE}",
                    service.name,
                )
            )
            break
    return refusals
