"""Write the flags of one SGLang release: from its wheel to `releases/data/flags/<version>.txt`.

    pip download --no-deps --only-binary=:all: -d DIR \\
        --platform manylinux_2_34_x86_64 --python-version 3.11 sglang==VERSION
    python -m releases.tools.extract_flags DIR/sglang-VERSION-*.whl \\
        > releases/data/flags/VERSION.txt

The argument parser is read, never run: importing it needs torch and takes seconds, reading it
needs the wheel alone. SGLang derives its flags from annotated fields
(`name: A[type, Arg(...)] = default`, in `srt/server_args.py` up to 0.5.19 and in
`srt/arg_groups/fields/` later) and adds a few by hand in `ServerArgs.add_cli_args`.
Both are followed here in the way that `srt/arg_groups/arg_utils.py` follows them.

A line of the output is

    NAME TAKES [TYPE] [of=NAME] [config=no] [required=yes] [choices=A,B] [deprecated=REST OF LINE]

- TAKES: `switch` (no value), `toggle` (`--x` or `--no-x`), `value`, `optional` (value or none),
  `list` (one or more values), `none` (takes nothing and does nothing, or stops the launch)
- `of=`: another spelling of that flag
- `config=no`: `sglang serve --config FILE` cannot take it. SGLang's reader of that file accepts
  plain values and switches only, and up to 0.5.22 it also refuses a flag that shares its
  destination with a deprecated one (`srt/utils/server_args_config_parser.py`)
- `deprecated=`: what SGLang itself says to write instead, or `-` where it says nothing
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass

SERVER_ARGS = "sglang/srt/server_args.py"
FIELDS = "sglang/srt/arg_groups/fields/"
CONFIG_READER = "sglang/srt/utils/server_args_config_parser.py"
DEPRECATED_ACTIONS = (
    "DeprecatedAction",
    "DeprecatedStoreTrueAction",
    "DeprecatedStoreConstAction",
    "DeprecatedAliasStoreAction",
)


class ExtractError(Exception):
    """The wheel is not laid out as this program expects; it needs a look at the new parser."""


@dataclass(frozen=True)
class Option:
    """One `add_argument` call: its spellings and what SGLang's parser does with them."""

    names: tuple[str, ...]
    dest: str
    takes: str
    type_name: str
    choices: tuple[str, ...] = ()
    required: bool = False
    deprecated: str | None = None
    plain: bool = True  # argparse's own store or store_true: what `--config` always accepts
    one_value: bool = True  # consumes exactly one value or is a switch: enough for 0.5.23


class Source:
    """The Python files of a wheel, with just enough evaluation to read lists of choices."""

    def __init__(self, wheel: str) -> None:
        """Take the path of a wheel; raise ExtractError if it holds no SGLang server."""
        with zipfile.ZipFile(wheel) as archive:
            self.texts = {
                name: archive.read(name).decode()
                for name in archive.namelist()
                if name.startswith("sglang/srt/") and name.endswith(".py")
            }
            metadata = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            found = re.search(r"^Version: (\S+)", archive.read(metadata).decode(), re.M)
        if SERVER_ARGS not in self.texts or found is None:
            raise ExtractError(f"{wheel}: no {SERVER_ARGS}")
        self.version = found.group(1)
        self.trees: dict[str, ast.Module] = {}

    def tree(self, path: str) -> ast.Module:
        """Return the parsed file at PATH of the wheel."""
        if path not in self.trees:
            self.trees[path] = ast.parse(self.texts[path])
        return self.trees[path]

    def constant(self, name: str) -> ast.expr | None:
        """Return the expression that a module-level NAME is bound to, or None."""
        definition = re.compile(rf"^{re.escape(name)}\s*(:[^=\n]+)?=", re.M)
        for path in self._paths(definition):
            for node in self.tree(path).body:
                value = _binding(node, name)
                if value is not None:
                    return value
        return None

    def attribute(self, owner: str, name: str) -> ast.expr | None:
        """Return the expression bound to NAME in the body of class OWNER, or None."""
        for path in self._paths(re.compile(rf"^class {re.escape(owner)}\b", re.M)):
            for node in self.tree(path).body:
                if isinstance(node, ast.ClassDef) and node.name == owner:
                    for inner in node.body:
                        value = _binding(inner, name)
                        if value is not None:
                            return value
        return None

    def _paths(self, definition: re.Pattern[str]) -> Iterator[str]:
        # The files about arguments first: a name there is the one that the parser means.
        order = sorted(self.texts, key=lambda p: (p != SERVER_ARGS, "arg_groups" not in p, p))
        return (path for path in order if definition.search(self.texts[path]))

    def values(
        self, node: ast.expr, local: dict[str, ast.expr], owner: str = ""
    ) -> list[str] | None:
        """Return the strings that NODE evaluates to, or None where reading cannot tell."""
        match node:
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                out: list[str] = []
                for item in items:
                    if isinstance(item, ast.Starred):
                        inner = self.values(item.value, local, owner)
                    else:
                        word = self._word(item, local, owner)
                        inner = None if word is None else [word]
                    if inner is None:
                        return None
                    out += inner
                return out
            case ast.Dict(keys=keys):
                words = [k and self._word(k, local, owner) for k in keys]
                return None if None in words else [w for w in words if w]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                a, b = self.values(left, local, owner), self.values(right, local, owner)
                return None if a is None or b is None else a + b
            case ast.Call(func=ast.Name(id="list" | "set" | "sorted" | "tuple"), args=[inner]):
                return self.values(inner, local, owner)
            case ast.Call(func=ast.Attribute(value=inner, attr="keys"), args=[]):
                return self.values(inner, local, owner)
            case ast.Call(func=ast.Name(id=name), args=[]):
                returned = self._last_return(name)
                return None if returned is None else self.values(returned, local, owner)
            case ast.Name(id=name):
                bound = local.get(name)
                if bound is None and owner:
                    bound = self.attribute(owner, name)
                bound = bound or self.constant(name)
                return None if bound is None else self.values(bound, local, owner)
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                bound = self.attribute(name, attr)
                return None if bound is None else self.values(bound, local, name)
        return None

    def _word(self, node: ast.expr, local: dict[str, ast.expr], owner: str) -> str | None:
        match node:
            case ast.Constant(value=str() | int() | float() as value):
                return str(value)
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                bound = self.attribute(name, attr)
                return None if bound is None else self._word(bound, local, name)
            case ast.Name(id=name):
                bound = local.get(name) or (self.attribute(owner, name) if owner else None)
                bound = bound or self.constant(name)
                return None if bound is None else self._word(bound, local, owner)
        return None

    def _last_return(self, function: str) -> ast.expr | None:
        for node in self.tree(SERVER_ARGS).body:
            if isinstance(node, ast.FunctionDef) and node.name == function:
                last = node.body[-1]
                return last.value if isinstance(last, ast.Return) else None
        return None


def _binding(node: ast.stmt, name: str) -> ast.expr | None:
    """Return what NODE binds to NAME, or None."""
    match node:
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return value
        case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value):
            return value if target == name else None
    return None


def _text(node: ast.expr | None) -> str | None:
    """Return the text of a string expression (also f-strings and sums of strings), or None."""
    match node:
        case ast.Constant(value=str() as value):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(_text(p) or "" for p in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (_text(left) or "") + (_text(right) or "")
    return None


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {k.arg: k.value for k in call.keywords if k.arg}


def _action_name(node: ast.expr | None) -> str | None:
    match node:
        case None:
            return None
        case ast.Constant(value=str() as value):
            return value
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=attr):
            return attr
    raise ExtractError(f"unknown action: {ast.dump(node)}")


def _unwrap_optional(node: ast.expr) -> ast.expr:
    match node:
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return inner
        case ast.BinOp(left=inner, op=ast.BitOr(), right=ast.Constant(value=None)):
            return inner
    return node


def _type_name(node: ast.expr | None, parser: ast.expr | None = None) -> str:
    if parser is not None:
        return ast.unparse(parser)
    match node:
        case ast.Name(id="int" | "float" | "str" as name):
            return name
    return "str"


def _by_action(
    action: str, names: tuple[str, ...], dest: str, kw: dict[str, ast.expr], choices: list[str]
) -> Option:
    """Return the option for an `action=`; raise ExtractError for one not seen so far."""
    nargs = kw.get("nargs")
    many = isinstance(nargs, ast.Constant) and nargs.value in ("+", "*")
    type_name = _type_name(kw.get("type"))
    if action == "store_true":
        help_text = _text(kw.get("help")) or ""
        said = re.match(r"\(Deprecated: use ([^)]*)\)", help_text)
        return Option(names, dest, "switch", "", deprecated=said and said.group(1))
    if action == "BooleanOptionalAction":
        # argparse adds the negative of every spelling.
        both = names + tuple("no-" + n for n in names)
        return Option(both, dest, "toggle", "", plain=False, one_value=False)
    if action == "LoRAPathAction":
        return Option(names, dest, "list", type_name, plain=False, one_value=False)
    if action in DEPRECATED_ACTIONS:
        said_text = _text(kw.get("new_flag")) or _text(kw.get("error_message"))
        text = said_text or _text(kw.get("help")) or "-"
        takes = {
            "DeprecatedAction": "none",
            "DeprecatedStoreTrueAction": "switch",
            "DeprecatedStoreConstAction": "switch",
            "DeprecatedAliasStoreAction": "list" if many else "value",
        }[action]
        if action == "DeprecatedStoreConstAction" and nargs is not None:
            takes = "value"  # an old valued flag whose one accepted value became a boolean
        return Option(
            names,
            dest,
            takes,
            type_name if takes in ("value", "list") else "",
            tuple(choices),
            deprecated=" ".join(text.split()),
            plain=False,
            one_value=takes == "value",
        )
    raise ExtractError(f"{names[0]}: action {action} is new; teach it to this program")


def from_field(source: Source, node: ast.AnnAssign, owner: str) -> Option | None:
    """Return the option that SGLang derives from a field, or None where it derives none.

    Follows `add_cli_args_from_dataclass` of `srt/arg_groups/arg_utils.py`.
    """
    match node.annotation:
        case ast.Subscript(value=ast.Name(id="A"), slice=ast.Tuple(elts=[raw, *notes])):
            pass
        case _:
            return None
    field = ast.unparse(node.target)
    arg: ast.Call | None = None
    for note in notes:
        if isinstance(note, ast.Call) and isinstance(note.func, ast.Name):
            if note.func.id == "Arg":
                arg = note
                break
        elif _text(note) is not None:
            arg = ast.Call(func=ast.Name(id="Arg"), args=[], keywords=[])
            break
    if arg is None:
        return None
    kw = _keywords(arg)
    if isinstance(kw.get("no_cli"), ast.Constant) and ast.unparse(kw["no_cli"]) == "True":
        return None
    first = _text(kw.get("cli_name")) or "--" + field.replace("_", "-")
    aliases = source.values(kw["aliases"], {}) if "aliases" in kw else []
    names = tuple(n.removeprefix("--") for n in [first, *(aliases or [])])
    choices = (source.values(kw["choices"], {}, owner) or []) if "choices" in kw else []
    required = node.value is None

    action = _action_name(kw.get("action"))
    if action is not None:
        inner = kw.get("action_kwargs")
        if isinstance(inner, ast.Dict):
            for key, value in zip(inner.keys, inner.values, strict=True):
                kw[_text(key) or ""] = value
        return _by_action(action, names, field, kw, choices)

    inner_type = _unwrap_optional(raw)
    if isinstance(inner_type, ast.Name):
        inner_type = source.constant(inner_type.id) or inner_type
    parser = kw.get("type_parser")
    match inner_type:
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            items = words.elts if isinstance(words, ast.Tuple) else [words]
            literal = [str(i.value) for i in items if isinstance(i, ast.Constant)]
            first_value = items[0].value if isinstance(items[0], ast.Constant) else ""
            name = _type_name(ast.Name(id=type(first_value).__name__), parser)
            return Option(names, field, "value", name, tuple(choices or literal), required)
        case ast.Subscript(value=ast.Name(id="List" | "list"), slice=element) if parser is None:
            return Option(names, field, "list", _type_name(element), tuple(choices), required)
        case ast.Name(id="bool"):
            return Option(names, field, "switch", "")
    nargs = _text(kw.get("nargs"))
    takes = {None: "value", "?": "optional", "+": "list", "*": "list"}[nargs]
    if "required" in kw:
        required = ast.unparse(kw["required"]) == "True"
    return Option(names, field, takes, _type_name(inner_type, parser), tuple(choices), required)


def from_call(source: Source, call: ast.Call, local: dict[str, ast.expr]) -> Option:
    """Return the option of a hand-written `parser.add_argument(...)` call."""
    names = tuple((_text(a) or "").removeprefix("--") for a in call.args)
    kw = _keywords(call)
    dest = _text(kw.get("dest")) or names[0].replace("-", "_")
    choices = (source.values(kw["choices"], local) or []) if "choices" in kw else []
    action = _action_name(kw.get("action"))
    if action is not None:
        return _by_action(action, names, dest, kw, choices)
    nargs = _text(kw.get("nargs"))
    takes = {None: "value", "?": "optional", "+": "list", "*": "list"}[nargs]
    return Option(names, dest, takes, _type_name(kw.get("type")), tuple(choices))


def options(source: Source) -> list[Option]:
    """Return every option of `sglang serve` that the wheel's parser registers."""
    out: list[Option] = []
    paths = [p for p in source.texts if p.startswith(FIELDS)] or [SERVER_ARGS]
    for path in sorted(paths):
        for node in source.tree(path).body:
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.AnnAssign):
                        option = from_field(source, inner, node.name)
                        if option is not None:
                            out.append(option)
    for found in ast.walk(source.tree(SERVER_ARGS)):
        if isinstance(found, ast.FunctionDef) and found.name == "add_cli_args":
            local = {
                ast.unparse(s.targets[0]): s.value for s in found.body if isinstance(s, ast.Assign)
            }
            for inner_node in ast.walk(found):
                if (
                    isinstance(inner_node, ast.Call)
                    and isinstance(inner_node.func, ast.Attribute)
                    and inner_node.func.attr == "add_argument"
                ):
                    out.append(from_call(source, inner_node, local))
    if len(out) < 100:
        raise ExtractError(f"{source.version}: only {len(out)} options: the parser has moved")
    return out


def config_keys(source: Source, found: list[Option]) -> set[str]:
    """Return the spellings that the release's `--config` reader accepts as keys.

    Two readers are known. Up to 0.5.22 only a flag's destination is looked at, so a current flag
    is refused when a deprecated one writes to the same destination, and a second spelling of a
    switch becomes `--spelling true`, which argparse rejects. 0.5.23 looks at every spelling.
    """
    by_spelling = "_config_keys" in source.texts[CONFIG_READER]
    refused: set[str] = set()
    if by_spelling:
        usable = {k for o in found if o.plain or o.one_value for k in _keys(o)}
        refused = {k for o in found if not (o.plain or o.one_value) for k in _keys(o)} - usable
    else:
        refused = {o.dest for o in found if not o.plain}
    switches = {o.dest for o in found if o.takes == "switch" and o.plain}
    if by_spelling:
        switches = {k for o in found if o.takes == "switch" and o.plain for k in _keys(o)}
    out: set[str] = set()
    for option in found:
        for name in option.names:
            key = name.replace("-", "_")
            if key in refused or option.takes in ("toggle", "none"):
                continue
            if option.takes == "switch" and key not in switches:
                continue
            out.add(name)
    return out - {"config"}


def _keys(option: Option) -> set[str]:
    return {option.dest} | {name.replace("-", "_") for name in option.names}


def lines(source: Source) -> list[str]:
    """Return the data file's lines, sorted by flag."""
    found = options(source)
    accepted = config_keys(source, found)
    rows: dict[str, str] = {}
    for option in found:
        for name in option.names:
            words = [name, option.takes]
            if option.type_name:
                words.append(option.type_name)
            if name != option.names[0]:
                words.append(f"of={option.names[0]}")
            if name not in accepted:
                words.append("config=no")
            if option.required and name == option.names[0]:
                words.append("required=yes")
            if option.choices:
                unique = sorted(set(option.choices))
                if any(re.search(r"[\s,]", c) or not c for c in unique):
                    raise ExtractError(f"{name}: a choice does not fit the format: {unique}")
                words.append("choices=" + ",".join(unique))
            if option.deprecated is not None:
                words.append(f"deprecated={option.deprecated}")
            if name in rows:
                raise ExtractError(f"{name} is registered twice")
            rows[name] = " ".join(words)
    head = (
        f"# SGLang {source.version}: the flags of `sglang serve`, read from the released wheel by\n"
        "# releases/tools/extract_flags.py, which explains the columns. Written by that program:\n"
        "# run it again instead of editing."
    )
    return [*head.splitlines(), *(rows[name] for name in sorted(rows))]


def main(arguments: list[str]) -> int:
    """Print the data file for the wheel named in ARGUMENTS; 2 on wrong usage."""
    if len(arguments) != 1:
        print("usage: python -m releases.tools.extract_flags WHEEL", file=sys.stderr)
        return 2
    print("\n".join(lines(Source(arguments[0]))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
