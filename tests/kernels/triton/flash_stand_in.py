"""In the place of FlashAttention 3: as picky about its arguments, seen as one operation, and right, in torch.

It reads keys in tiles, as a kernel does: what lies before a window in the same tile has weight 0, and is not to be NaN for
that. For rows that see nothing it writes NaN (the library writes zeros): nobody is to rely on these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

import torch

TILE = 32
HALVES = (torch.float16, torch.bfloat16)
calls: Counter[str] = Counter()


def check(holds: bool, what: str) -> None:
    if not holds:
        raise RuntimeError(what)


def with_kvcache(dtypes: tuple[torch.dtype, ...] = HALVES, off: float = 0.0) -> Callable[..., torch.Tensor]:
    """`flash_attn_with_kvcache`. `dtypes`: that it takes; `off`: how far its answers are beside the truth."""

    def flash_attn_with_kvcache(
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        k: None = None,
        v: None = None,
        qv: None = None,
        rotary_cos: None = None,
        rotary_sin: None = None,
        cache_seqlens: torch.Tensor | None = None,
        cache_batch_idx: None = None,
        cache_leftpad: None = None,
        page_table: torch.Tensor | None = None,
        cu_seqlens_q: torch.Tensor | None = None,
        cu_seqlens_k_new: None = None,
        max_seqlen_q: int | None = None,
        rotary_seqlens: None = None,
        q_descale: None = None,
        k_descale: None = None,
        v_descale: None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        attention_chunk: int = 0,
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        scheduler_metadata: None = None,
        num_splits: int = 0,
        pack_gqa: bool | None = None,
        sm_margin: int = 0,
        return_softmax_lse: bool = False,
    ) -> torch.Tensor:
        assert cache_seqlens is not None and page_table is not None and cu_seqlens_q is not None
        assert causal and num_splits == 1 and attention_chunk == 0 and not return_softmax_lse
        check(q.dtype in dtypes, "FlashAttention only supports fp16, bf16, and fp8_e4m3 data type")
        check(max_seqlen_q is not None, "max_seqlen_q must be provided if cu_seqlens_q is provided")
        assert max_seqlen_q is not None
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        made = _forward(
            q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, max_seqlen_q, page_table, scale, window_size[0], softcap
        )  # fmt: skip
        calls["seen"] += 1
        return made + off if off else made

    return flash_attn_with_kvcache


@torch.library.custom_op("homebox_tests::flash_forward", mutates_args=())
def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    max_seqlen_q: int,
    page_table: torch.Tensor,
    scale: float,
    left: int,
    softcap: float,
) -> torch.Tensor:
    calls["done"] += 1
    for name, x in (("query", q), ("key", k), ("value", v)):
        check(x.dtype == q.dtype, f"query and {name} must have the same dtype")
        check(x.stride(-1) == 1, "Input tensor must have contiguous last dimension")
    for x in (page_table, cu_seqlens_q, seqused_k):
        check(
            x.dtype == torch.int32 and x.is_contiguous() and x.device == q.device,
            "int32, contiguous, on its device",
        )
    tokens, heads, dim = q.shape
    pages, page, kv_heads, _ = k.shape
    batch, width = page_table.shape
    check(k.shape == v.shape and k.shape[-1] == dim and dim % 8 == 0 and dim <= 256, "head_size")
    check(heads % kv_heads == 0, "Number of heads in key/value must divide number of heads in query")
    check(
        cu_seqlens_q.shape == (batch + 1,) and seqused_k.shape == (batch,),
        "batch_size must be equal to batch_size_k",
    )
    borders = cu_seqlens_q.tolist()
    check(
        borders[0] == 0 and borders == sorted(borders) and borders[-1] <= tokens, "borders of rows in order"
    )
    out = torch.full_like(q, math.nan)
    for row, seen in enumerate(seqused_k.tolist()):
        begin, end = borders[row], borders[row + 1]
        check(end - begin <= max_seqlen_q and seen <= width * page, "a row is longer than it was said")
        if seen == 0 or begin == end:
            continue
        first = seen - (end - begin)  # the position of its first query
        check(first >= 0, "a query sees no key")
        lowest = 0 if left < 0 else max(first - left, 0) // TILE * TILE
        keys = torch.arange(lowest, seen)
        blocks = page_table[row, keys // page].long()
        check(bool(((blocks >= 0) & (blocks < pages)).all()), "it reads at a page that is none")
        its_k, its_v = (
            x[blocks, keys % page].float().repeat_interleave(heads // kv_heads, dim=1) for x in (k, v)
        )
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), its_k) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        position = torch.arange(first, seen)[:, None]
        hidden = keys > position
        if left >= 0:
            hidden |= keys < position - left
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, its_v).to(q.dtype)
    return out
