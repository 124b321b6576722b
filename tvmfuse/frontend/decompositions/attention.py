"""Attention, where PyTorch's own decomposition hides the structure that fusion looks for."""

from __future__ import annotations

import math

import torch


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Scaled dot-product attention as two matmuls around a softmax.

    PyTorch's decomposition guards every softmax against rows that are masked out wholly. Such
    rows exist only with an explicit mask, so that only this case keeps the guard.
    """
    dtype = query.dtype
    if dtype in (torch.float16, torch.bfloat16):
        # PyTorch's kernels keep scores and sums in float32 and round the result only.
        query, key, value = query.float(), key.float(), value.float()
        if attn_mask is not None and attn_mask.dtype == dtype:
            attn_mask = attn_mask.float()
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
    factor = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = torch.where(visible, scores, -math.inf)
    if attn_mask is None:
        weights = torch.softmax(scores, -1)
    else:
        if attn_mask.dtype == torch.bool:
            scores = torch.where(attn_mask, scores, -math.inf)
        else:
            scores = scores + attn_mask
        weights = torch.ops.aten._safe_softmax.default(scores, -1)
    if dropout_p > 0.0:
        weights = torch.dropout(weights, dropout_p, True)
    return torch.matmul(weights, value).to(dtype)


TABLE = {torch.ops.aten.scaled_dot_product_attention.default: attention}
