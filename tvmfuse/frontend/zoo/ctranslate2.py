"""Whisper from a file of CTranslate2 (version 6), which transformers does not read."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import nn

_TYPES = ("float32", "int8", "int16", "int32", "float16")  # by their number in the file
_RENAMED = (
    ("position_encodings/encodings", "embed_positions/weight"),
    ("embeddings/", "embed_tokens/"),
    ("layer_norm/gamma", "layer_norm/weight"), ("layer_norm/beta", "layer_norm/bias"),
    ("self_attention/layer_norm", "self_attn_layer_norm"),
    ("attention/layer_norm", "encoder_attn_layer_norm"), ("ffn/layer_norm", "final_layer_norm"),
    ("ffn/linear_0", "fc1"), ("ffn/linear_1", "fc2"),
    ("self_attention/", "self_attn/"), ("attention/", "encoder_attn/"), ("layer_", "layers/"),
    ("layers/norm", "layer_norm"), ("final_layers/norm", "final_layer_norm"),
    ("attn_layers/norm", "attn_layer_norm"),
)  # fmt: skip


class Whisper(nn.Module):
    """Logits [batch, tokens, words] of log-mel features [batch, 80, 3000] and tokens so far."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """All at once: no cache, which would be state."""
        logits: torch.Tensor = self.module(
            input_features=features, decoder_input_ids=tokens, use_cache=False
        ).logits
        return logits


def whisper(path: Path) -> nn.Module:
    """The model of a file, in float32; raises ImportError without transformers."""
    import transformers

    stored = read(path)
    state: dict[str, torch.Tensor] = {}
    for name, value in stored.items():
        if value.ndim:
            state.update(_renamed(name, value))
    width = state["model.decoder.embed_tokens.weight"].shape[1]
    layers = {
        s: len(
            {k for k in stored if k.startswith(f"{s}/layer_") and k.endswith("ffn/linear_0/weight")}
        )
        for s in ("encoder", "decoder")
    }
    config = transformers.WhisperConfig(
        vocab_size=len(state["model.decoder.embed_tokens.weight"]), d_model=width,
        encoder_layers=layers["encoder"], decoder_layers=layers["decoder"],
        encoder_attention_heads=int(stored["encoder/num_heads"]),
        decoder_attention_heads=int(stored["decoder/num_heads"]),
        encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width,
    )  # fmt: skip
    module = transformers.WhisperForConditionalGeneration(config)
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    module.load_state_dict(state)
    return Whisper(module)


def read(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file by name."""
    with path.open("rb") as file:
        version = _numbers(file, "I")[0]
        if version != 6:
            raise ValueError(f"version {version} of the format; known is 6")
        _text(file)
        _, count = _numbers(file, "II")
        found = {}
        for _ in range(count):
            name = _text(file)
            shape = _numbers(file, "I" * _numbers(file, "B")[0])
            kind, size_bytes = _numbers(file, "BI")
            array = np.frombuffer(file.read(size_bytes), _TYPES[kind]).reshape(shape)
            found[name] = torch.tensor(array)
    return found


def _numbers(file: BinaryIO, kinds: str) -> tuple[int, ...]:
    return struct.unpack(f"<{kinds}", file.read(struct.calcsize(f"<{kinds}")))


def _text(file: BinaryIO) -> str:
    return file.read(_numbers(file, "H")[0])[:-1].decode()


def _renamed(name: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    """A tensor under the names of transformers: projections of one input apart."""
    value = value.float()
    parts: tuple[str, ...] = ()
    for joined, names in (
        ("self_attention/linear_0", ("q_proj", "k_proj", "v_proj")),
        ("self_attention/linear_1", ("out_proj",)),
        ("/attention/linear_0", ("q_proj",)),
        ("/attention/linear_1", ("k_proj", "v_proj")),
        ("/attention/linear_2", ("out_proj",)),
    ):
        if joined in name:
            parts = names
            name = name.replace(joined, joined.rpartition("/")[0] + "/PART")
            break
    for old, new in _RENAMED:
        name = name.replace(old, new)
    whole = "model." + name.replace("/", ".")
    if "alignment" in whole:
        return {}
    if not parts:
        return {whole: value}
    pieces = zip(parts, value.chunk(len(parts)), strict=True)
    made = {whole.replace("PART", part): piece for part, piece in pieces}
    return {k: v for k, v in made.items() if not k.endswith("k_proj.bias")}  # all zeros
