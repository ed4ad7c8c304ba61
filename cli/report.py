"""What people read: plans, verdicts and states, as text for a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from cli.summary import few
from operations.outcomes import Outcome
from plans.fleet import folded, headline
from plans.plan import NodePlan
from plans.refusals import Caution, Refusal
from plans.verification import Verdict


def console(*, stderr: bool, no_color: bool) -> Console:
    """Return a console that keeps to the terminal's width and to NO_COLOR."""
    plain = no_color or bool(os.environ.get("NO_COLOR"))
    return Console(stderr=stderr, no_color=plain, highlight=False)


def plans(out: Console, nodes: Iterable[NodePlan], *, diff: bool, details: bool = False) -> None:
    """Print the plans of nodes: those that say the same as one, with their names."""
    for fold in folded(nodes):
        plan(out, fold.plan, diff=diff, details=details, also=fold.nodes[1:])


def plan(
    out: Console,
    node: NodePlan,
    *,
    diff: bool,
    details: bool = False,
    also: Sequence[str] = (),
) -> None:
    """Print a node's plan: the decision, its reasons, what it warns of, the changes.

    ``also`` are nodes of which the same is true; ``details`` asks for all their names, and for
    the reason of each departure of a lock of packages.
    """
    head = Text(node.node, style="bold")
    if also:
        names = [node.node, *also]
        head = Text(", ".join(names) if details else few(names), style="bold").append(
            f"  ({len(also) + 1} nodes)", style="dim"
        )
    style = "red" if node.refusals else "green" if node.converged else "yellow"
    head.append(f"  {headline(node)}", style=style)
    if node.refusals and node.image:
        head.append(f" (its driver and GPUs could run {node.image})", style="dim")
    if node.release and not node.refusals:
        frozen = any(caution.code == "FROZEN_RELEASE" for caution in node.cautions)
        held = ", frozen there by its driver" if frozen else ""
        head.append(f"  SGLang {node.release}{held}, {node.image or 'as packages'}", style="dim")
    out.print(head, soft_wrap=True)
    for reason in node.reasons:
        _line(out, "·", reason, "dim")
    for what, why in _departures(node) if details else ():
        _indented(out, 6, Text(f"{what}: {why}", style="dim"))
    for caution in node.cautions:
        if caution.code != "FROZEN_RELEASE":  # the first of the reasons says it
            caution_line(out, caution)
    for refusal in node.refusals:
        refusal_lines(out, refusal)
        _diff_lines(out, refusal.diff if diff else "")
    for what in () if node.refusals else node.unresolved:
        _line(out, "?", f"unresolved: {what}", "yellow")
    for change in node.changes:
        where = f"{change.service}: " if change.service and len(node.services) > 1 else ""
        _line(out, "~", f"{where}{change.kind}  {change.what}: {change.why}", "")
        _diff_lines(out, change.diff if diff else "")
    out.print()


def _diff_lines(out: Console, diff: str) -> None:
    for line in diff.splitlines():
        _indented(out, 6, Text(line, style="dim"))


def _departures(node: NodePlan) -> Iterable[tuple[str, str]]:
    there = [one.environment.departures for one in node.services if one.environment]
    return dict.fromkeys(departure for departures in there for departure in departures)


def refusal_lines(out: Console, refusal: Refusal) -> None:
    """Print a refusal: the code, what was seen, what is needed, what mends it."""
    where = f" ({refusal.service})" if refusal.service else ""
    _line(out, "✗", f"{refusal.code}{where}", "red")
    for label, text in (
        ("seen", refusal.seen),
        ("needed", refusal.needed),
        ("do", refusal.advice),
    ):
        _indented(out, 4, Text.assemble((f"{label:>6}  ", "dim"), text))


def caution_line(out: Console, caution: Caution) -> None:
    """Print a caution on one line."""
    where = f" ({caution.service})" if caution.service else ""
    _line(out, "!", f"{caution.code}{where}: {caution.text}", "yellow")


def verdict(out: Console, node: str, service: str, one: Verdict) -> None:
    """Print what a verify found."""
    if one.ok:
        measured = []
        if one.milliseconds is not None:
            measured.append(f"one generation in {one.milliseconds / 1000:.1f} s")
        if one.first_answer_seconds is not None:
            measured.append(f"first answer {one.first_answer_seconds} s after its start")
        told = f" ({', '.join(measured)})" if measured else ""
        out.print(
            Text.assemble((node, "bold"), f"  {service}: ", (one.sentence, "green"), told),
            soft_wrap=True,
        )
        shown = one.answer if len(one.answer) <= 100 else one.answer[:97] + "..."
        if shown:
            _line(out, "·", f"it said: {shown}", "dim")
    else:
        out.print(
            Text.assemble((node, "bold"), f"  {service}: ", (one.sentence, "red")), soft_wrap=True
        )
        for line in one.log:
            _indented(out, 6, Text(line, style="dim"))
    for finding in one.findings:
        _line(out, "!", f"{finding.entry.meaning} {finding.entry.advice}", "yellow")


def outcome(out: Console, node: str, one: Outcome) -> None:
    """Print what operations found wrong on a node."""
    for refusal in one.refusals:
        out.print(Text(node, style="bold"))
        refusal_lines(out, refusal)
    for note in one.notes:
        _line(out, "!", note, "yellow")
    for failure in one.failures:
        out.print(Text.assemble((node, "bold"), "  ", (failure, "red")), soft_wrap=True)


def marked(out: Console, mark: str, text: str, style: str) -> None:
    """Print a line of a node with a mark before it."""
    _line(out, mark, text, style)


def _line(out: Console, mark: str, text: str, style: str) -> None:
    _indented(out, 2, Text.assemble((f"{mark} ", style), (text, style)))


def _indented(out: Console, by: int, text: Text) -> None:
    # Not broken at the terminal's width: a command is there to be copied whole.
    out.print(Text(" " * by).append_text(text), soft_wrap=True)


def table(out: Console, rows: Iterable[tuple[str, ...]], header: tuple[str, ...]) -> None:
    """Print rows under a header, each column as wide as its widest cell.

    On a terminal that is too narrow for it, each row as lines of its own.
    """
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    if out.is_terminal and sum(widths) + 2 * (len(widths) - 1) > out.width:
        _narrow(out, lines[1:], header)
        return
    for number, line in enumerate(lines):
        text = "  ".join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        out.print(Text(text, style="dim" if number == 0 else ""), soft_wrap=True)


def _narrow(out: Console, rows: Iterable[tuple[str, ...]], header: tuple[str, ...]) -> None:
    named = max(map(len, header[1:]), default=0)
    for first, *cells in rows:
        out.print(Text(first, style="bold"), soft_wrap=True)
        for name, cell in zip(header[1:], cells, strict=True):
            if cell:
                text = Text.assemble((f"  {name.ljust(named)}  ", "dim"), cell)
                out.print(text, soft_wrap=True)
