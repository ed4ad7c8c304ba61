"""The survey as a pyinfra fact, read once per node and run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from weakref import WeakKeyDictionary

from pyinfra import logger
from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.exceptions import FactProcessError, PyinfraError
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host
from pyinfra.context import ContextObject

from facts.parsing import SurveyError, parse_survey, read_recorded
from facts.records import Survey
from facts.request import DEADLINE_S, SurveyRequest

__all__ = [
    "DEADLINE_S",
    "NodeSurvey",
    "RawSurvey",
    "SurveyError",
    "SurveyRequest",
    "forget_survey",
    "parse_survey",
    "raw_survey",
    "read_recorded",
    "read_survey",
    "survey_problem",
]

PROGRAM = Path(__file__).with_name("survey.sh")

CONNECTION_MARGIN_S = 60
"""Seconds over the survey's own deadline after which the connection is given up.

The program ends by its deadline by itself; this is for a network that fell silent, which
pyinfra would otherwise wait on for ever.
"""


def survey_command(request: SurveyRequest) -> StringCommand:
    """Return the one remote command that surveys a node.

    The program travels as the command's own text: pyinfra quotes a command once and hands it to
    ``sh -c``, so that neither a file on the node nor a here-document is needed, and sudo's
    standard input stays free. Its comments stay behind (the system takes 128 KiB an argument).
    """
    return StringCommand(
        ": sglang-survey;",
        "set --",
        *(QuoteString(word) for word in request.words()),
        StringCommand("\n", _program(), _separator=""),
    )


@cache
def _program() -> str:
    lines = PROGRAM.read_text(encoding="utf-8").splitlines()
    kept = (line.strip() for line in lines)
    return "\n".join(line for line in kept if line and not line.startswith("#")) + "\n"


class _SurveyCommand:
    """What both facts share: the command, and the name of the node."""

    node = "node"

    def command(self, request: SurveyRequest | None = None, node: str = "node") -> StringCommand:
        """Return the command; ``node`` is the inventory name that the survey will carry."""
        self.node = node
        return survey_command(request or SurveyRequest())


class RawSurvey(_SurveyCommand, FactBase[tuple[str, ...]]):
    """The lines of a survey as the node printed them."""

    @staticmethod
    def default() -> tuple[str, ...]:
        """Return no lines: a survey that could not be read is not an empty node."""
        return ()

    def process(self, output: list[str]) -> tuple[str, ...]:
        """Return the lines unchanged."""
        return tuple(output)


class NodeSurvey(_SurveyCommand, FactBase[Survey | None]):
    """The survey of a node, also for plain ``pyinfra INVENTORY fact facts.survey.NodeSurvey``."""

    @staticmethod
    def default() -> None:
        """Return None: a survey that could not be read is not an empty node."""
        return None

    def process(self, output: list[str]) -> Survey:
        """Return the survey; any error becomes a FactProcessError, which fails this node alone.

        Any other exception would end the run for every node of the inventory.
        """
        try:
            return parse_survey(output, self.node)
        except SurveyError as error:
            raise FactProcessError(str(error)) from error


@dataclass(frozen=True)
class _Reading:
    lines: tuple[str, ...]
    survey: Survey | None
    problem: str | None


# pyinfra 3.10 runs a fact's command at every get_fact, in prepare and again in execute. A Host
# object belongs to one run, so what hangs on it is forgotten with the run.
_readings: WeakKeyDictionary[Host, _Reading] = WeakKeyDictionary()


def read_survey(host: Host, request: SurveyRequest) -> Survey | None:
    """Return the survey of ``host``: one remote command at the first call, none after that.

    The request of the first call counts. Escalates as the host's data say (``_sudo`` and its
    like are pyinfra's own host data). Where no survey could be read the host is marked as failed
    as pyinfra does it, one sentence is logged (``survey_problem`` gives it again), and the
    answer is None, now and for the rest of the run. It does not raise: an exception in deploy
    code would end the run for every node (pyinfra raises its own once no host is left).
    """
    host = _real(host)
    reading = _readings.get(host)
    if reading is None:
        try:
            lines = host.get_fact(
                RawSurvey,
                request=request,
                node=host.name,
                _timeout=request.deadline_s + CONNECTION_MARGIN_S,
            )
        except PyinfraError:
            # Raised in place of an answer where the last host of a run has failed.
            lines = RawSurvey.default()
        reading = _read(lines, host.name)
        _readings[host] = reading
        if reading.problem is not None:
            logger.error(f"{host.print_prefix}{reading.problem}")
            host.state.fail_hosts({host})  # type: ignore[no-untyped-call]
    return reading.survey


def _read(lines: tuple[str, ...], node: str) -> _Reading:
    try:
        return _Reading(lines, parse_survey(lines, node), None)
    except SurveyError as error:
        return _Reading(lines, None, str(error))


def survey_problem(host: Host) -> str | None:
    """Return the sentence that says why ``host`` has no survey; None where it has, or none was
    asked for yet."""
    reading = _readings.get(_real(host))
    return reading.problem if reading else None


def raw_survey(host: Host) -> tuple[str, ...]:
    """Return the lines that the survey of ``host`` was read from, for a record; () where none."""
    reading = _readings.get(_real(host))
    return reading.lines if reading else ()


def forget_survey(host: Host) -> None:
    """Forget the survey of ``host``, so that the next ``read_survey`` reads it anew."""
    _readings.pop(_real(host), None)


def _real(host: Host) -> Host:
    """Return the host behind pyinfra's ``host``, which stands for another one at another time."""
    if isinstance(host, ContextObject):
        real: Host = host._get_module()  # type: ignore[no-untyped-call]
        return real
    return host
