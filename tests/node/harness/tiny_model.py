"""Write a tiny random Qwen2 model into a directory: `python tiny_model.py DIR`.

Run by the CPU environment's own Python, which has torch and transformers. Two layers and 512
tokens, under 1 MB: it answers nonsense at once, and that is enough to see a server generate.
"""

from __future__ import annotations

import sys

import torch  # type: ignore[import-not-found, unused-ignore]
from tokenizers import (  # type: ignore[import-not-found, unused-ignore]
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import (  # type: ignore[import-not-found, unused-ignore]
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write(folder: str) -> None:
    """Train the tokenizer on one sentence, draw the weights at random (seed 0), save both."""
    torch.manual_seed(0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["The capital of France is Paris. Hello world! "] * 50, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT,
    ).save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    _never_end_by_chance(model)
    model.to(torch.bfloat16).save_pretrained(folder)


def _never_end_by_chance(model: Qwen2ForCausalLM) -> None:
    """Make the end of text unlikely: all 512 tokens are about as likely as another otherwise.

    One generation in 512 would have no text, and a run of the tests asks for hundreds. One
    feature is the same for every token, and the end of text is what speaks against it.
    """
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 0.5
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[0, 0] = -5.0


if __name__ == "__main__":
    write(sys.argv[1])
