"""``hf:NAME``: transformers, from configurations alone or from a local folder.

``hf:bert-base-uncased`` and the other names of ``_RECIPES`` have the sizes of the models of these
names; ``hf:TYPE`` is any model type of the library in its default size; ``hf:FOLDER`` reads
``config.json`` and, if they are there, the weights. Nothing is fetched.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tvmfuse.errors import ImportModelError, OptionError, UnknownNameError
from tvmfuse.frontend import shapes
from tvmfuse.frontend import weights as weights_io
from tvmfuse.frontend.loaded import LoadedReference, Shape, provenance, weights_file
from tvmfuse.frontend.zoo.randomness import build

_TOKENS = 128
_SAMPLES = 16000  # a second of sound
_FRAMES = 3000  # 30 seconds of log-mel features, which Whisper demands


@dataclass(frozen=True)
class Recipe:
    """A model: its type, what differs from the defaults, its class, and the part that is wanted."""

    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)
    head: str = "AutoModel"
    part: Callable[[nn.Module], nn.Module] = lambda module: module


def _encoder(module: Any) -> nn.Module:
    return module.get_encoder()


def _decoder(module: Any) -> nn.Module:
    return module.get_decoder()


_RECIPES = {
    "bert-base-uncased": Recipe("bert"),
    "distilbert-base-uncased": Recipe("distilbert"),
    "roberta-base": Recipe(
        "roberta", {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
    ),
    "gpt2": Recipe("gpt2", head="AutoModelForCausalLM"),
    "t5-small-encoder": Recipe("t5", part=_encoder),
    "t5-small-decoder": Recipe("t5", part=_decoder),
    "vit-base-patch16-224": Recipe("vit", {"num_labels": 1000}, "AutoModelForImageClassification"),
    "swin-tiny-patch4-window7-224": Recipe(
        "swin", {"num_labels": 1000}, "AutoModelForImageClassification"
    ),
    "whisper-tiny-encoder": Recipe(
        "whisper", {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6,
                    "encoder_ffn_dim": 1536, "decoder_layers": 4, "decoder_attention_heads": 6,
                    "decoder_ffn_dim": 1536}, part=_encoder,
    ),
    "clip-vit-base-patch32": Recipe("clip"),
    "smollm2-135m": Recipe(
        "llama", {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
                  "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
                  "tie_word_embeddings": True},
        "AutoModelForCausalLM",
    ),
}  # fmt: skip


class _ByName(nn.Module):
    """A transformers model with its arguments by position and only tensors returned."""

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self.parameter_names = module, names

    def forward(self, *inputs: Any) -> dict[str, torch.Tensor]:
        """Call by name."""
        returned = self.module(**dict(zip(self.parameter_names, inputs, strict=True)))
        return {k: v for k, v in returned.items() if isinstance(v, torch.Tensor)}


def load(
    name: str, *, batch: int | None, shape: Shape, weights: str | None, seed: int
) -> LoadedReference:
    """Load a model; parameters and errors as :func:`tvmfuse.frontend.models.load_model`.

    ``shape`` is that of the first input; others of its rank take it too.
    """
    try:
        import transformers
    except ImportError as error:
        raise ImportModelError(
            f"--model hf:{name} needs the package transformers, which cannot be imported "
            f"({error}); pip install transformers"
        ) from error
    folder = Path(name)
    if folder.is_dir():
        module, source = _from_folder(transformers, folder, weights, seed)
    else:
        module, source = _from_recipe(transformers, name, weights, seed)
    if source not in ("random", "from the folder"):
        weights_io.load_state_dict(module, weights_file(source))
    inputs = _inputs(module, batch, _one_shape(name, shape), seed)
    wrapped = _ByName(module, tuple(inputs)).eval()
    short = folder.name if folder.is_dir() else name
    said = provenance(f"hf:{name}", source, seed, transformers=transformers.__version__)
    return LoadedReference(wrapped, tuple(inputs.values()), short, said)


def _from_recipe(
    transformers: Any, name: str, weights: str | None, seed: int
) -> tuple[nn.Module, str]:
    types = transformers.CONFIG_MAPPING
    recipe = _RECIPES.get(name) or (Recipe(name) if name in types else None)
    if recipe is None:
        hint = "A local folder with a config.json is accepted as well."
        raise UnknownNameError("hf model", name, [*_RECIPES, *types], hint)
    if weights == "pretrained":
        raise OptionError(
            "--weights pretrained: no hub is asked; give the folder of a downloaded model as "
            "hf:FOLDER, or a state dict with --weights FILE"
        )
    config = transformers.AutoConfig.for_model(recipe.model_type, **recipe.changes)
    return _made(transformers, config, recipe.head, recipe.part, seed), weights or "random"


def _from_folder(
    transformers: Any, folder: Path, weights: str | None, seed: int
) -> tuple[nn.Module, str]:
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        stored = any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin"))
        heads = getattr(config, "architectures", None) or ["AutoModel"]
        if weights in (None, "pretrained") and stored:
            kind = getattr(transformers, heads[0])
            config.use_cache = False
            return kind.from_pretrained(folder, config=config, local_files_only=True).eval(), (
                "from the folder"
            )
    except Exception as error:  # transformers raises many kinds
        raise ImportModelError(
            f"transformers {transformers.__version__} cannot read {str(folder)!r}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if weights == "pretrained":
        raise ImportModelError(f"{str(folder)!r} holds no weights (*.safetensors, *.bin)")
    return _made(transformers, config, heads[0], lambda m: m, seed), weights or "random"


def _made(
    transformers: Any, config: Any, head: str, part: Callable[[nn.Module], nn.Module], seed: int
) -> nn.Module:
    config.use_cache = False  # a cache is state
    kind = getattr(transformers, head)
    automatic = head.startswith("Auto")
    try:
        whole = build(lambda: kind.from_config(config) if automatic else kind(config), seed)
    except Exception as error:  # transformers raises many kinds
        raise ImportModelError(
            f"transformers {transformers.__version__} cannot make a {head} of "
            f"{type(config).__name__}: {type(error).__name__}: {error}"
        ) from error
    weights_io.randomize(whole, seed)
    return part(whole)


def _one_shape(name: str, shape: Shape) -> tuple[int, ...] | None:
    if shape is None:
        return None
    found = shapes.parse_shapes(shape)
    if len(found) > 1:
        raise OptionError(
            f"--shape for hf:{name} is that of its first input, which the others follow; "
            f"{len(found)} were given"
        )
    return found[0][0]


def _inputs(
    module: Any, batch: int | None, shape: tuple[int, ...] | None, seed: int
) -> dict[str, torch.Tensor]:
    """Example arguments by name, in the order of ``forward``."""
    config = module.config
    takes = inspect.signature(module.forward).parameters
    generator = torch.Generator().manual_seed(seed)
    rows = batch or (shape[0] if shape else 1)
    length = shape[1] if shape and len(shape) == 2 else _length(config)
    text = getattr(config, "text_config", config)
    vision = getattr(config, "vision_config", config)

    def ids() -> torch.Tensor:
        high = int(getattr(text, "vocab_size", 1000))
        return torch.randint(3, high, (rows, length), generator=generator)

    def floats(*extents: int) -> torch.Tensor:
        return torch.randn(rows, *extents, generator=generator)

    side = getattr(vision, "image_size", 224)
    plane = tuple(side) if isinstance(side, (list, tuple)) else (side, side)
    pixels = shape[1:] if shape and len(shape) == 4 else (
        int(getattr(vision, "num_channels", 3)), *plane
    )  # fmt: skip
    makers: dict[str, Callable[[], torch.Tensor]] = {
        "input_ids": ids,
        "attention_mask": lambda: torch.ones(rows, length, dtype=torch.int64),
        "pixel_values": lambda: floats(*pixels),
        "input_values": lambda: floats(_SAMPLES),
        "input_features": lambda: floats(int(getattr(config, "num_mel_bins", 80)), _FRAMES),
        "encoder_hidden_states": lambda: floats(_TOKENS, int(config.hidden_size)),
        "decoder_input_ids": ids,
    }
    wanted = [n for n in takes if n in makers and _is_wanted(n, takes, config)]
    if not wanted:
        raise ImportModelError(
            f"{type(module).__name__} takes none of {', '.join(makers)}; pass it as "
            "package.module:callable with its example inputs"
        )
    return {name: makers[name]() for name in wanted}


def _is_wanted(name: str, takes: Any, config: Any) -> bool:
    if name == "attention_mask":
        return "input_ids" in takes
    if name in ("encoder_hidden_states", "decoder_input_ids"):
        decodes = bool(getattr(config, "is_encoder_decoder", False))
        return decodes if name == "decoder_input_ids" else bool(getattr(config, "is_decoder", 0))
    return True


def _length(config: Any) -> int:
    text = getattr(config, "text_config", config)
    limit = getattr(text, "max_position_embeddings", None) or _TOKENS
    return min(_TOKENS, int(limit))
