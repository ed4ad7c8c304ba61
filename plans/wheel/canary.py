"""Judges the canary of the wheel runtime: does the environment load, compile, link and start CUDA?

``templates/wheel_canary.py`` runs in the unit's environment and prints what it found;
``plans/data/wheel_canary.yaml`` says what each failure means. Each cause is one refusal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from facts.records import known
from plans.canary import (
    CANARY_LIMIT,
    ENDED_MARK,
    RESULT_MARK,
    Canary,
    Expected,
    Judge,
    document_of,
    last,
    listed,
    mapping,
    rules,
    short,
    texts,
    uses_cuda,
)
from plans.gpus import capability_of
from plans.plan import ServicePlan
from plans.wheel.broken_tools import Mend, broken_tools
from releases.yaml_text import read_yaml

RULES = "wheel_canary.yaml"

STEP_LIMIT = 600
"""Seconds after which one step is given up. The slowest are to read torch for the first time,
300 s on a cloud's slowest disks, and a kernel, 12 to 20 s of one processor's time; 160 s was seen
for a larger kernel on two processors that eight others used."""


class Library(BaseModel):
    """Which package of the distribution brings a library, or what it means that it is missing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pattern: str
    apt: str = ""
    dnf: str = ""
    code: str = "LIBRARY_MISSING"


@cache
def _data() -> Mapping[str, Any]:
    path = Path(__file__).parents[1] / "data" / RULES
    found = read_yaml(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@cache
def libraries() -> tuple[Library, ...]:
    """Return what is known of system libraries."""
    return tuple(Library.model_validate(one) for one in _data()["libraries"])


def objects() -> tuple[str, ...]:
    """Return the shared objects, below site-packages, that the dynamic loader is asked about."""
    return tuple(_data()["objects"])


@dataclass(frozen=True)
class ExpectedWheel(Expected):
    """What the plan gives a server of the wheel runtime."""

    directory: str = ""  # the environment's
    python: str = "3.12"
    compiler: bool = False  # its lock has one of CUDA
    compiles_for: tuple[str, ...] = ()  # compute capabilities, each once; none: nothing compiles

    @property
    def limit(self) -> int:
        """Seconds after which the whole canary is given up."""
        return CANARY_LIMIT + STEP_LIMIT * (1 + len(self.compiles_for))


def expected_wheel(plan: ServicePlan) -> ExpectedWheel:
    """Return what the canary of a plan must find.

    Kernels are compiled for each kind of GPU that the plan has, also for a service on the CPU
    device, unless the lock has no CUDA compiler.
    """
    launch = plan.launch
    assert launch is not None
    assert launch.environment is not None
    found = [capability_of(gpu) for gpu in plan.decision.gpus]
    capabilities = tuple(one if known(one) else None for one in found)
    compiles = dict.fromkeys(one for one in capabilities if one is not None)
    compiler = launch.environment.cuda_home is not None
    return ExpectedWheel(
        service=plan.name,
        image="",
        cuda=uses_cuda(launch),
        capabilities=capabilities,
        serving=plan.guard is not None and plan.guard.main_pid > 0,
        directory=launch.environment.directory,
        python=launch.environment.python,
        compiler=compiler,
        compiles_for=tuple(compiles) if compiler else (),
    )


def judge_wheel(lines: Iterable[str], wanted: ExpectedWheel) -> Canary:
    """Return what the canary's output means. Never raises for any output.

    ``lines`` are all that the second program of ``plans.wheel.canary_program`` printed.
    """
    printed = [line for line in lines if line.strip()]
    ended = last(printed, ENDED_MARK)
    document = document_of(last(printed, RESULT_MARK))
    judged = _WheelJudge(wanted)
    if document is not None:
        return judged.of(document)
    said = [line for line in printed if not line.startswith("@")]
    text = "\n".join(said)
    doing = next((line for line in reversed(said) if line.endswith("...")), "its start")
    if ended is None:
        judged.refuse(
            "CANARY_FAILED",
            "the canary was cut off before it ended",
            "a canary that ends",
            "apply again",
        )
    elif "result: timeout" in text or ended == "124":
        judged.timed_out(doing, wanted.limit)
    elif "result: oom-kill" in text:
        judged.killed(doing)
    else:
        judged.failed(said, f"the canary of {wanted.directory} ended with {ended}")
    return judged.result


class _WheelJudge(Judge):
    """Gathers what the canary of an environment found wrong."""

    place = "in the unit"
    readable = "files that the user sglang may read"

    def __init__(self, wanted: ExpectedWheel) -> None:
        super().__init__(wanted)
        self._wheel = wanted
        self._mend = Mend(wanted.directory, wanted.python)
        own = tuple(
            rule.model_copy(update={"advice": self._mend.filled(rule.advice)})
            for rule in rules(RULES)
        )
        # What CUDA means by a number is the same there; what Docker says is nothing of ours.
        numbered = {rule.code for rule in rules() if rule.numbers}
        self.rules = (*own, *(rule for rule in rules() if rule.code in numbered))

    @override
    def of(self, document: Mapping[str, Any]) -> Canary:
        if self._wheel.compiles_for:
            for seen in broken_tools(mapping(document.get("tools")), self._mend):
                self.refuse(seen.code, seen.seen, seen.needed, seen.advice)
        if self._wheel.compiler and None in self._wanted.capabilities:
            self._notes.append(
                "the canary compiled nothing for a GPU whose compute capability is not known"
            )
        self._loader(mapping(document.get("objects")))
        steps = [mapping(one) for one in listed(document.get("steps"))]
        if not steps:
            self.failed([], "the canary named no step of its own")
        self._files(document)
        first = steps[0] if steps else {}
        if first.get("ended") != 0:
            self._step(first)
        elif self._wanted.cuda:
            self._cuda(document)
        if not self._refusals:
            self._imports(document)
        for one in steps[1:]:
            if one.get("ended") != 0:
                self._step(one)
        if not self._refusals and not self._compiled_all(document, steps):
            self.failed([], "the canary did not compile all that it was asked for")
        return self.result

    def _compiled_all(self, document: Mapping[str, Any], steps: list[Mapping[str, Any]]) -> bool:
        wanted = self._wheel.compiles_for
        if not wanted:
            return True
        names = [str(one.get("name")) for one in steps]
        compiled = sum(name.startswith("compiling") for name in names)
        return (
            set(wanted) <= set(texts(document.get("compiled_for")))
            # FlashInfer's kernel is one for all, SGLang's one for each.
            and compiled > len(wanted)
            and any(name.startswith("building") for name in names)
        )

    @override
    def refuse(self, code: str, seen: str, needed: str, advice: str) -> None:
        # One refusal for each cause: a second step that fails by it says nothing new.
        if all(one.code != code for one in self._refusals):
            super().refuse(code, seen, needed, advice)

    def _loader(self, objects: Mapping[str, Any]) -> None:
        """Refuse for the first library of each kind that the dynamic loader does not find."""
        kinds: dict[str, list[tuple[str, str]]] = {}
        for name, where in ((str(one[0]), str(one[1])) for one in _pairs(objects.get("missing"))):
            brings = _library_of(name)
            code = brings.code if brings else "LIBRARY_MISSING"
            kinds.setdefault(code, []).append((name, where))
        for code, found in kinds.items():
            (name, where), others = found[0], [one[0] for one in found[1:]]
            also = f"; also {', '.join(others)}" if others else ""
            seen = short(f"{name} is not found, which {where} needs{also}")
            if code == "LIBRARY_MISSING":
                self._library(seen, [one[0] for one in found])
            else:
                self._as_ruled(code, seen)
        for line, where in _pairs(objects.get("versions")):
            rule = self.rule_for(str(line))
            if rule is not None:
                self.refuse(rule.code, short(f"{where}: {line}"), rule.needed, rule.advice)

    def _as_ruled(self, code: str, seen: str) -> None:
        """Refuse with what the first rule of a code says is needed, and mends it."""
        rule = next(rule for rule in self.rules if rule.code == code)
        self.refuse(code, seen, rule.needed, rule.advice)

    def _library(self, seen: str, names: list[str]) -> None:
        brings = [one for one in map(_library_of, names) if one is not None and one.apt]
        if brings:
            apt = " ".join(dict.fromkeys(one.apt for one in brings))
            dnf = " ".join(dict.fromkeys(one.dnf for one in brings))
            mends = f"sudo apt-get install -y {apt} (RHEL family: sudo dnf install -y {dnf})"
        elif names[0].startswith("libpython"):
            mends = self._mend.anew
        else:
            mends = f"apt-file search {names[0]}, or dnf provides '*/{names[0]}', names its package"
        self.refuse("LIBRARY_MISSING", seen, "every library that the server's packages need", mends)

    def _step(self, step: Mapping[str, Any]) -> None:
        """Refuse for a step that failed, by what it said."""
        name, ended = str(step.get("name") or "a step"), step.get("ended")
        said = [str(line) for line in listed(step.get("said"))]
        if ended == "timeout":
            took = step.get("seconds")
            self.timed_out(name, took if isinstance(took, (int, float)) else STEP_LIMIT)
            return
        for rule in self.rules:
            for line in said:
                if rule.fits(line):
                    self._ruled(rule, f"{name}: {line.strip()}")
                    return
        for line in said:
            missing = re.search(r"(lib[^\s:]+\.so[^\s:]*): cannot open shared object", line)
            if missing:
                self._library(short(f"{name}: {line.strip()}"), [missing.group(1)])
                return
        if ended == -9:
            self.killed(name)
            return
        if self._refusals:
            return  # the cause is named already, and this is what came of it
        how = f"was ended by signal {-ended}" if isinstance(ended, int) and ended < 0 else "failed"
        why = f": {short(_reason(said))}" if said else ""
        if name.startswith(("compiling", "building")):
            self.refuse(
                "KERNEL_NOT_COMPILED",
                f"{name} {how}{why}",
                "an environment in which kernels compile, link and load",
                self._mend.anew,
            )
        else:
            self.refuse(
                "ENVIRONMENT_BROKEN",
                f"{name} {how}{why}",
                "an environment whose packages load",
                self._mend.anew,
            )

    def timed_out(self, doing: str, seconds: float) -> None:
        """Refuse for a canary that did not end."""
        self.refuse(
            "CANARY_TIMEOUT",
            f"{doing.removesuffix(' ...')} did not end in {seconds:.0f} s",
            "a step of the canary that ends",
            "top and iostat on the node: is it busy or its disk slow? With a GPU: sudo dmesg | "
            "grep -i -e xid -e NVRM; then apply again",
        )

    def killed(self, doing: str) -> None:
        """Refuse for a program that the kernel ended because there was no memory."""
        self._as_ruled(
            "COMPILER_NO_MEMORY", f"{doing.removesuffix(' ...')}: killed, as where memory runs out"
        )

    @override
    def failed(self, said: list[str], what: str) -> None:
        for rule in self.rules:
            for line in said:
                if rule.fits(line):
                    self.refuse(rule.code, short(line), rule.needed, rule.advice)
                    return
        told = f": {short(said[-1])}" if said else ""
        self.refuse(
            "CANARY_FAILED",
            f"{what}{told}",
            "an environment whose Python starts as the user sglang, with the unit's own flags",
            f"sudo -u sglang {self._wheel.directory}/bin/python3 -c 'import torch' on the node; "
            f"{self._mend.anew}",
        )

    @override
    def no_libcuda(self, seen: str) -> None:
        self._as_ruled("LIBCUDA_MISSING", seen)

    @override
    def gpus_missing(self, seen: str) -> None:
        self._as_ruled("GPU_NOT_SEEN", seen)

    @override
    def unwritable(self, line: str, path: str) -> None:
        self.refuse(
            "CACHE_UNWRITABLE",
            line,
            "a directory that the user sglang may write",
            f"ls -ld {path}; findmnt -T {path}",
        )

    @override
    def import_failed(self, name: str, why: str) -> None:
        self._step({"name": f"import {name}", "ended": 1, "said": [why]})


def _library_of(name: str) -> Library | None:
    return next((one for one in libraries() if re.search(one.pattern, name)), None)


def _pairs(value: object) -> list[list[Any]]:
    return [one for one in listed(value) if isinstance(one, list) and len(one) == 2]


def _reason(said: list[str]) -> str:
    """Return the line that most likely says why: the first error, else the last word."""
    for line in said:
        if re.search(r"\b([Ff]atal )?[Ee]rror\b ?:", line):
            return line.strip()
    return said[-1].strip()
