"""The options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from cli.bounds import NODE_LIMIT_S, read_bounds
from cli.context import Run
from cli.ends import code_of
from cli.events import SCHEMA_VERSION, Events
from cli.wishes import one_box
from plans.version import VERSION
from plans.wishes import DEFAULT_OUTPUT_CAP, DEFAULT_TOKENS_PER_SECOND

Function = Callable[..., Any]


def _stack(*options: Function) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


COMMON = _stack(
    click.argument("target"),
    click.option(
        "--json", "as_json", is_flag=True, help="One JSON document on stdout, all else on stderr."
    ),
    click.option(
        "--limit",
        multiple=True,
        metavar="NAME",
        help="Only these hosts or groups, or those in @FILE; may be repeated.",
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="NAME",
        help="Not these hosts or groups, or those in @FILE; may be repeated.",
    ),
    click.option(
        "--max-fail",
        metavar="N|N%",
        help="Begin nothing more once more nodes than this have failed [no limit].",
    ),
    click.option("--fail-fast", is_flag=True, help="Begin nothing more once a node has failed."),
    click.option(
        "--node-limit",
        type=float,
        metavar="SECONDS",
        help=f"Give up a node that takes longer [{NODE_LIMIT_S:g}].",
    ),
    click.option(
        "-v",
        "--verbose",
        "verbosity",
        count=True,
        help="Say more; -vv shows what is run, -vvv what it prints.",
    ),
    click.option(
        "--events",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write what happens here as it does, one JSON object a line (docs/events.md).",
    ),
    click.option("--no-color", is_flag=True, help="No colour (also NO_COLOR)."),
    click.option("--sudo", is_flag=True, help="Become root on the nodes with sudo."),
    click.option(
        "-K",
        "--ask-sudo-password",
        is_flag=True,
        help="Become root with sudo; ask for its password once, for all nodes.",
    ),
    click.option(
        "--accept-new",
        is_flag=True,
        help="Take the host keys of nodes that have none in known_hosts, and say which.",
    ),
)

ALLOW_RELOAD = click.option(
    "--allow-daemon-reload",
    is_flag=True,
    help="Let systemd reload though containers lose their GPUs by it (explain LEGACY_GPU_CONTAINERS).",
)

BUNDLE = _stack(
    click.option(
        "--bundle",
        "bundle_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Install from this bundle, with no network: see the command bundle.",
    ),
    click.option(
        "--bundle-sha256", metavar="HEX", help="Refuse the bundle where its manifest has another."
    ),
)

ONE_BOX = _stack(
    click.option(
        "--model", metavar="ID|PATH", help="For one box: a model of the hub, or a path on the node."
    ),
    click.option("--revision", help="Of the hub model: branch, tag or commit."),
    click.option("--name", help="Of the service; else made from the model's."),
    click.option("--served-name", help="The model's name for clients; else the model itself."),
    click.option(
        "--kind", type=click.Choice(["generate", "embed", "rerank"]), help="What the service does."
    ),
    click.option("--port", type=int, help="Where it listens [30000]."),
    click.option("--address", help="Where it listens [127.0.0.1: this node alone]."),
    click.option(
        "--writable-root",
        is_flag=True,
        help="Let the container change its own files (explain READ_ONLY_ROOT).",
    ),
    click.option(
        "--tp-size", type=int, help="Tensor parallel size: GPUs that share the model [1]."
    ),
    click.option("--gpus", help="all, indexes (0,1) or UUIDs."),
    click.option(
        "--argument",
        multiple=True,
        metavar="FLAG=VALUE",
        help="Argument of sglang serve; may be repeated.",
    ),
    click.option(
        "--env",
        multiple=True,
        metavar="NAME=VALUE",
        help="Environment of the server; may be repeated.",
    ),
    click.option(
        "--api-key",
        metavar="SOURCE",
        help="Key that the server asks for: env:NAME, file:PATH or command:WORDS, never itself.",
    ),
    click.option(
        "--hub-token",
        metavar="SOURCE",
        help="Token of the hub, for gated models: a source, as for --api-key.",
    ),
    click.option(
        "--output-cap",
        type=int,
        help=f"Longest answer in tokens; the stop deadline counts on it [{DEFAULT_OUTPUT_CAP}].",
    ),
    click.option(
        "--tokens-per-second",
        type=float,
        help=f"Slowest rate of one request [{DEFAULT_TOKENS_PER_SECOND:g}].",
    ),
    click.option("--release", help="SGLang's version; else the newest that the node can run."),
    click.option("--image", help="Image of that release in a registry of yours, with its tag."),
    click.option(
        "--runtime",
        type=click.Choice(["auto", "image", "wheel"]),
        help="How SGLang gets onto the node [auto].",
    ),
    click.option(
        "--forward-compat",
        is_flag=True,
        help="Allow CUDA forward compatibility (explain FORWARD_COMPAT).",
    ),
    click.option(
        "--cu129-override",
        is_flag=True,
        help="Run the CUDA 12.9 image on a driver it refuses (explain CU129_OVERRIDE).",
    ),
    click.option(
        "--unsupported",
        is_flag=True,
        help="Go on where the operating system is not a supported one.",
    ),
)

_ONE_BOX_KEYS = (
    "model", "revision", "name", "served_name", "kind", "port", "address", "writable_root", "tp_size", "gpus",
    "argument", "env", "api_key", "hub_token", "output_cap", "tokens_per_second", "release", "image", "runtime",
    "forward_compat", "cu129_override", "unsupported",
)  # fmt: skip


def with_run(function: Function) -> Function:
    """Give a command its ``Run`` in place of the shared options."""

    @functools.wraps(function)
    def wrapped(
        target: str,
        as_json: bool,
        limit: tuple[str, ...],
        exclude: tuple[str, ...],
        max_fail: str | None,
        fail_fast: bool,
        node_limit: float | None,
        verbosity: int,
        events: Path | None,
        no_color: bool,
        sudo: bool,
        ask_sudo_password: bool,
        accept_new: bool,
        **options: Any,
    ) -> Any:
        box = {key: options.pop(key) for key in _ONE_BOX_KEYS if key in options}
        bounds = read_bounds(max_fail, fail_fast, node_limit)
        run = Run(
            target, as_json, limit, verbosity, no_color, sudo, exclude, bounds, Events(events)
        )
        run.sudo = sudo or ask_sudo_password
        run.ask_sudo_password, run.accept_new = ask_sudo_password, accept_new
        command = click.get_current_context().info_name
        run.events.tell(
            "run-started", schema=SCHEMA_VERSION, toolkit=VERSION, command=command, target=target
        )
        if box:
            data = one_box(box)
            if data is not None and (target.endswith(".py") or target.startswith("@ansible/")):
                raise click.UsageError(
                    "an inventory says itself what its nodes serve: change it there, or name a host"
                )
            run.data = data
        try:
            return function(run, **options)
        except SystemExit:
            raise  # it has told its end
        except BaseException as error:
            code = int(code_of(error))
            run.events.tell("run-ended", exit_code=code, seconds=run.events.seconds)
            raise

    return wrapped
