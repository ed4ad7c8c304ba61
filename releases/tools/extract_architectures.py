"""Write the model architectures of one SGLang release: from its wheel to a list, one a line.

    python -m releases.tools.extract_architectures DIR/sglang-VERSION-*.whl \\
        > releases/data/architectures/VERSION.txt

SGLang has the code of a model in a module of `srt/models/` that names its classes in `EntryClass`;
the class's name is what a model's config.json has under `architectures`. The modules are read,
never run: importing them needs torch. Not listed are the names by which SGLang calls the code of
transformers: what only runs that way is not known to the release.
"""

from __future__ import annotations

import ast
import sys
import zipfile

MODELS = "sglang/srt/models/"


class ExtractError(Exception):
    """The wheel is not laid out as this program expects; it needs a look at the new registry."""


def entry_classes(source: str) -> set[str]:
    """Return the names in a module's `EntryClass`; none where it has none."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Assign(targets=[ast.Name(id="EntryClass")], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id="EntryClass"), value=ast.expr() as value):
                pass
            case ast.AugAssign(target=ast.Name(id="EntryClass"), value=value):
                pass
            case _:
                continue
        items = value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]
        for item in items:
            if not isinstance(item, ast.Name):
                raise ExtractError(f"EntryClass holds {ast.unparse(item)}")
            found.add(item.id)
    return found


def extract(wheel: str) -> list[str]:
    """Return the architectures of a wheel, sorted. Raises ExtractError."""
    found: set[str] = set()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            # As SGLang's own registry does it: the modules of the folder, not those below it.
            inner = name.removeprefix(MODELS)
            if name.startswith(MODELS) and name.endswith(".py") and "/" not in inner:
                try:
                    found |= entry_classes(archive.read(name).decode("utf-8-sig"))
                except ExtractError as error:
                    raise ExtractError(f"{name}: {error}") from None
    found = {name for name in found if not name.startswith("Transformers")}
    if len(found) < 100:
        raise ExtractError(f"only {len(found)} architectures: is the registry elsewhere now?")
    return sorted(found)


if __name__ == "__main__":
    print(f"# Written by releases/tools/extract_architectures.py from {sys.argv[1].split('/')[-1]}")
    print("\n".join(extract(sys.argv[1])))
