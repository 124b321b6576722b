"""Which operator may join which anchor, and a model in which it does.

Anchors: compute-heavy ones first. Operators: those that most models of the zoo have first; behind
them those of models outside it. ``bias`` and ``scale`` are an addition and a multiplication with
a constant or a smaller tensor, ``add`` and ``multiply`` with a tensor of the same shape (a
residual, a gate), ``..._const`` other operators with a smaller operand.
"""

# Behind an anchor.
EPILOGUES: dict[str, dict[str, str]] = {
    "conv2d": {
        "bias": "resnet50", "relu": "resnet50", "add": "resnet50", "sigmoid": "efficientnet_b0",
        "clip": "mobilenet_v2", "divide_const": "mobilenet_v3_large", "silu": "efficientnet_b0",
        "scale": "lraspp_mobilenet_v3_large", "multiply": "mobilenet_v3_large",
        "gelu": "maxvit_t", "leaky_relu": "darknet53", "prelu": "ESPNetv2", "tanh": "pix2pix",
        "exp": "FCOS", "subtract": "DnCNN", "cast": "ResNet-50 under autocast",
        "round": "CompressAI bmshj2018", "gelu_tanh": "SigLIP",
        "transpose": "fasterrcnn_resnet50_fpn",
    },
    "depthwise": {
        "bias": "mobilenet_v2", "relu": "mobilenet_v3_large", "clip": "mobilenet_v2",
        "divide_const": "mobilenet_v3_large", "multiply": "mobilenet_v3_large",
        "scale": "convmixer_768_32", "add": "convmixer_768_32", "silu": "efficientnet_b0",
        "gelu": "maxvit_t", "subtract": "fastvit_t8", "prelu": "MobileFaceNet",
        "leaky_relu": "NanoDet",
    },
    "grouped": {
        "bias": "regnet_y_400mf", "relu": "regnet_y_400mf", "gelu": "dm_nfnet_f0",
        "scale": "dm_nfnet_f0", "add": "fastvit_t8", "leaky_relu": "CSPResNeXt50",
        "silu": "RegNetZ",
    },
    "conv1d": {
        "gelu": "wav2vec2", "bias": "wav2vec2", "sigmoid": "ecaresnet26t", "relu": "TCN",
        "leaky_relu": "HiFi-GAN", "tanh": "HiFi-GAN", "add": "WaveNet", "multiply": "WaveNet",
        "prelu": "Conv-TasNet", "scale": "QuartzNet", "silu": "Mamba",
    },
    "conv3d": {
        "scale": "r3d_18", "bias": "r3d_18", "relu": "r3d_18", "add": "r3d_18",
        "leaky_relu": "nnU-Net", "prelu": "V-Net", "sigmoid": "3D U-Net", "silu": "X3D",
        "multiply": "X3D",
    },
    "conv2d_transpose": {
        "bias": "U-Net", "relu": "DCGAN", "tanh": "DCGAN", "scale": "DCGAN", "add": "FCN-8s",
        "gelu": "SAM",
    },
    "conv1d_transpose": {
        "bias": "HiFi-GAN", "leaky_relu": "HiFi-GAN",
    },
    "conv3d_transpose": {
        "bias": "3D U-Net", "relu": "3D-GAN", "scale": "3D-GAN", "sigmoid": "3D-GAN",
    },
    "dense": {
        "bias": "resnet50", "add": "convnext_tiny", "gelu": "convnext_tiny",
        "scale": "convnext_tiny", "tanh": "maxvit_t", "multiply": "mobilenet_v3_large",
        "relu": "vgg11_bn", "clip": "mobilenet_v3_large", "divide_const": "mobilenet_v3_large",
        "power_const": "albert", "sigmoid": "clipvision", "silu": "mobilevit_s",
        "leaky_relu": "GAT", "prelu": "DIN", "selu": "DeepRecommender", "gelu_tanh": "GPT-2",
        "sin": "SIREN", "cos": "TGN", "cast": "BERT under autocast", "softplus": "Mamba",
        "exp": "VAE", "subtract": "N-BEATS", "layer_norm": "bert",
    },
    "matmul": {
        "scale": "coat_lite_tiny", "add": "coat_lite_tiny", "relu": "Performer",
        "sigmoid": "GAE", "bias": "BLOOM", "divide_const": "Gemma 2", "tanh": "Gemma 2",
        "multiply": "Evoformer", "cast": "CLIP under autocast",
    },
    "softmax": {
        "cast": "Llama", "scale": "MoE routers", "multiply": "SKNet",
    },
    "log_softmax": {
        "multiply": "TransE", "negative": "CTC decoders",
    },
    "layer_norm": {
        "add": "swin_v2_t", "gelu": "crossvit_9_240", "scale": "DiT", "bias": "DiT",
        "cast": "GPT-2 under autocast", "multiply": "gMLP", "relu": "Graph Transformer",
        "tanh": "Dreamer", "silu": "Dreamer v3",
    },
    "max_pool": {
        "relu": "PyTorch's MNIST example", "tanh": "LeNet-5",
    },
    "avg_pool": {
        "subtract": "poolformer_s12", "scale": "poolformer_s12", "add": "poolformer_s12",
        "sigmoid": "LeNet-5",
    },
    "mean": {
        "bias": "llama", "rsqrt": "llama", "scale": "levit_128s", "sqrt": "ECAPA-TDNN",
        "sigmoid": "Squeeze-and-excite without convolutions",
    },
    "sum": {
        "power_const": "swin_v2_t", "clip": "swin_v2_t", "sqrt": "CLIP", "log": "CRF layers",
        "rsqrt": "cosine similarity", "divide": "soft Dice score",
    },
    "elementwise": {
        "add": "swin_t", "bias": "densenet121", "transpose": "shufflenet_v2_x1_0",
        "scale": "maxvit_t", "multiply": "gpt2", "negative": "gptneox", "silu": "llama",
        "relu": "densenet121", "gelu": "gptneox", "divide": "swin_v2_t", "slice": "swin_v2_t",
        "tanh": "gpt2", "divide_const": "efficientformer_l1", "clip": "levit_128s",
        "cast": "roberta", "gelu_tanh": "gemma", "power_const": "phi", "sigmoid": "LSTM cells",
        "leaky_relu": "GAT", "subtract": "boxes of torchvision.ops",
        "maximum": "boxes of torchvision.ops", "minimum": "boxes of torchvision.ops",
        "exp": "SSD box decoding", "log": "focal loss heads", "sqrt": "F.normalize",
        "rsqrt": "T5 layer norm", "sin": "DDPM time embedding", "cos": "DDPM time embedding",
        "where": "masked_fill", "greater": "hard masks", "softplus": "Mish in YOLOv4",
        "erf": "hand-written GELU", "abs": "Huber heads", "prelu": "ESPNetv2",
        "subtract_const": "image normalisation", "maximum_const": "hard swish by hand",
        "minimum_const": "hard swish by hand", "round": "CompressAI bmshj2018",
        "floor": "RoI align", "selu": "DeepRecommender",
    },
}  # fmt: skip

# Operators that are anchors themselves and join one all the same, because a template computes both:
# (anchor, operator) -> element types.
PAIRS: dict[tuple[str, str], tuple[str, ...]] = {("dense", "layer_norm"): ("float32",)}

# In front of an anchor, computed while its template reads. Products read every value many times
# and take a part of the index only, which costs them nothing.
PROLOGUES: dict[str, dict[str, str]] = {
    "conv2d": {
        "slice": "googlenet", "transpose": "resnet50",
    },
    "depthwise": {
        "slice": "edgenext_small",
    },
    "dense": {
        "slice": "xcit_tiny_12_p16_224",
    },
    "softmax": {
        "bias": "maxvit_t", "scale": "CLIP", "divide_const": "sampling with temperature",
        "add": "T5", "cast": "Llama", "where": "GPT-2", "multiply": "SKNet",
    },
    "log_softmax": {
        "scale": "distillation", "bias": "classifiers with a prior", "cast": "Whisper",
    },
    "layer_norm": {
        "bias": "clipvision", "scale": "xcit_tiny_12_p16_224", "add": "xcit_tiny_12_p16_224",
        "cast": "Llama", "multiply": "gMLP",
    },
    "mean": {
        "power_const": "llama", "multiply": "RMS norm by hand", "abs": "L1 heads",
        "cast": "Llama",
    },
    "sum": {
        "power_const": "swin_v2_t", "multiply": "DLRM", "exp": "CRF layers", "abs": "L1 norms",
        "subtract": "soft Dice score",
    },
    "max": {
        "abs": "dynamic quantisation", "scale": "PointNet", "bias": "PointNet",
    },
}  # fmt: skip
