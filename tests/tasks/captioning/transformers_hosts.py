"""Tiny encoder-decoders of transformers that write captions, in folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tasks.captioning.scenes import COLORS, THINGS

transformers = pytest.importorskip("transformers", reason="needs the extra hf")
tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf")

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = (*SPECIAL, "a", "the", "is", "this", ".", "!", *COLORS, *THINGS)
ENCODER = {
    "image_size": 16,
    "patch_size": 8,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
TEXT = {
    "vocab_size": len(WORDS) + 2,
    "max_position_embeddings": 20,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def tokenizer(*, bare: bool = False) -> Any:
    """Lower-case words and marks, between [CLS] and [SEP]; or, as in GPT-2, without special tokens except the end."""
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    inner.normalizer = tokenizers.normalizers.Lowercase()
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    if bare:
        return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="[SEP]")
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def configuration(decoder: Any, **fields: Any) -> Any:
    ids = {"decoder_start_token_id": 2, "eos_token_id": 3, "pad_token_id": 0, **fields}
    encoder = transformers.ViTConfig(**ENCODER)
    return transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder, **ids)


def write_gpt2(folder: Path) -> str:
    """Write ViT with GPT-2, whose start, end and padding are the same token."""
    sizes = {"n_positions": 20, "n_embd": 24, "n_layer": 2, "n_head": 2, "n_inner": 48, "vocab_size": len(WORDS)}
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    decoder = transformers.GPT2Config(**sizes, **rates, bos_token_id=3, eos_token_id=3)
    ids = dict.fromkeys(("decoder_start_token_id", "eos_token_id", "pad_token_id"), 3)
    host = write_host(folder, decoder=decoder, words=False, **ids)
    tokenizer(bare=True).save_pretrained(folder)
    return host


def write_host(folder: Path, *, words: bool = True, images: bool = True, decoder: Any = None, **fields: Any) -> str:
    """Write ViT with a decoder, by default BERT; `fields` are those of the configuration."""
    config = configuration(decoder or transformers.BertConfig(**TEXT), **fields)
    transformers.set_seed(0)
    transformers.VisionEncoderDecoderModel(config).save_pretrained(folder)
    if words:
        tokenizer().save_pretrained(folder)
    if images:
        size = {"height": 16, "width": 16}
        transformers.ViTImageProcessor(size=size, image_mean=[0.5] * 3, image_std=[0.25] * 3).save_pretrained(folder)
    return f"hf:{folder}"
