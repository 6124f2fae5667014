"""``kimi_topk16`` on torch tensors."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kreg.errors import LaunchError
from kreg.launch import Launch, check_tensor, on_current_stream, prepare
from kreg.loader import LoadedKernel

from .._device.layout import EXPERTS, TOP

_KEPT = 1024
_launches: dict[tuple[int, str], Launch] = {}
_calls: dict[tuple[int, str, int], Callable[..., None]] = {}


def kimi_topk16(
    logits: torch.Tensor,
    bias: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    *,
    selection: str = "bound_rank",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Select 16 of 896 experts per row, on torch's current stream.

    ``logits`` f32 [rows, 896], ``bias`` f32 [896], both contiguous and on one GPU. Returns ``weights`` f32 [rows, 16]
    and ``ids`` i32 [rows, 16], in the tensors of ``out`` if given. Both selections give the same bits;
    ``bound_rank`` is the faster. The first call on a device loads the kernel and may not be under graph capture.
    Raises ``LaunchError`` that names the argument.
    """
    device = logits.get_device()
    rows = logits.shape[0] if logits.dim() == 2 else 1
    call = _calls.get((device, selection, rows)) or _bind(logits, selection, rows)
    if out is None:
        weights = logits.new_empty((rows, TOP))
        ids = torch.empty((rows, TOP), dtype=torch.int32, device=logits.device)
    else:
        weights, ids = out
    addresses = (
        check_tensor("logits", logits, torch.float32, (rows, EXPERTS), device),
        check_tensor("bias", bias, torch.float32, (EXPERTS,), device),
        check_tensor("weights", weights, torch.float32, (rows, TOP), device),
        check_tensor("ids", ids, torch.int32, (rows, TOP), device),
    )
    if rows:
        call(*addresses)
    return weights, ids


def _bind(logits: torch.Tensor, selection: str, rows: int) -> Callable[..., None]:
    if not logits.is_cuda:
        raise LaunchError(f"logits is on {logits.device}; kimi_topk16 runs on a GPU")
    device = logits.get_device()
    if (device, selection) not in _launches:
        kernel = prepare("kimi_topk16", device=device, selection=selection)
        assert isinstance(kernel, LoadedKernel)
        _launches[device, selection] = Launch(kernel, (0, 0, 0, 0), changing=4)
    if len(_calls) >= _KEPT:
        _calls.clear()
    call = _calls[device, selection, rows] = on_current_stream(_launches[device, selection], (rows, 1, 1))
    return call
