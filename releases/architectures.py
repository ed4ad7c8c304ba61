"""Which model architectures a release has code of its own for.

The lists are `releases/data/architectures/<version>.txt`, written from the released wheels by
`releases/tools/extract_architectures.py`; the names are those of `architectures` in config.json.
"""

from __future__ import annotations

from functools import cache

from releases.table import DATA

REWRITTEN = frozenset(
    {
        "DeepseekOCR2ForCausalLM",
        "Gemma3TextModel",
        "LongcatCausalLM",
        "LongcatFlashNgramForCausalLM",
        "Qwen3_5Model",
    }
)
"""Names that SGLang serves under another one.

Read in the 0.5.22 wheel: get_model_architecture in srt/model_loader/utils.py, ModelConfig in
srt/configs/model_config.py, get_config in srt/utils/hf_transformers/config.py.
"""


@cache
def architectures(version: str) -> frozenset[str] | None:
    """Return the architectures of a release; None where its list was not extracted."""
    path = DATA / "architectures" / f"{version}.txt"
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8").splitlines()
    return REWRITTEN | {line for line in lines if line and not line.startswith("#")}
