"""The top 16 on a GPU, against the reference, between its two forms, and against version 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
import torch
import version_1
from kreg.kernels.kimi_topk16 import kimi_topk16

import kreg
from kreg.launch import Launch, on_current_stream

FORMS = ("two_level", "bound_rank")


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """The corpus on the GPU."""
    return [(n, torch.from_numpy(a).cuda()[None], torch.from_numpy(b).cuda()) for n, a, b in reference.corpus()]


def run_each(rows: list[tuple[str, torch.Tensor, torch.Tensor]], call: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return weights [rows, 16] and ids [rows, 16] of single-row calls; outputs are poisoned first."""
    weights = torch.full((len(rows), 16), float("nan"), device="cuda")
    ids = torch.full((len(rows), 16), -1, dtype=torch.int32, device="cuda")
    for i, (_, logits, bias) in enumerate(rows):
        call(logits, bias, (weights[i : i + 1], ids[i : i + 1]))
    return weights.cpu().numpy(), ids.cpu().numpy()


def launch_version_1() -> Any:
    kernel = kreg.prepare(version_1.TOPK16)
    call = on_current_stream(Launch(kernel, (0, 0, 0, 0), changing=4), (1, 1, 1))
    return lambda logits, bias, out: call(*(t.data_ptr() for t in (logits, bias, *out)))


@pytest.mark.parametrize("selection", FORMS)
def test_top16_matches_the_reference_on_the_corpus(rows, selection: str, record: dict[str, Any]):
    weights, ids = run_each(rows, lambda a, b, out: kimi_topk16(a, b, out, selection=selection))
    wrong = []
    for i, (name, logits, bias) in enumerate(reference.corpus()):
        complaint = reference.explain(ids[i], weights[i], logits, bias)
        if complaint:
            wrong.append(f"row {i} ({name}): {complaint}")
    record[f"top16 {selection}: rows against the float64 reference"] = {"rows": len(rows), "wrong": len(wrong)}
    assert not wrong, wrong[:3]


def test_top16_forms_agree_in_every_bit(rows, record: dict[str, Any]):
    first, second = (run_each(rows, lambda a, b, o, f=form: kimi_topk16(a, b, o, selection=f)) for form in FORMS)
    assert np.array_equal(first[1], second[1])
    assert np.array_equal(first[0].view(np.uint32), second[0].view(np.uint32))
    record["top16: rows equal in every bit between two_level and bound_rank"] = len(rows)


def test_top16_differs_from_version_1_exactly_where_that_repeats_an_expert(rows, record: dict[str, Any]):
    old_weights, old_ids = run_each(rows, launch_version_1())
    new_weights, new_ids = run_each(rows, lambda a, b, out: kimi_topk16(a, b, out, selection="two_level"))
    differs = (old_ids != new_ids).any(1) | (old_weights.view(np.uint32) != new_weights.view(np.uint32)).any(1)
    repeats = np.array([len(set(row.tolist())) < 16 for row in old_ids])
    finite = np.array([(reference.selections(a, b) > -np.inf).sum() for _, a, b in reference.corpus()])
    assert repeats.sum() > 0
    assert np.array_equal(differs, repeats)
    assert not differs[finite >= 16].any()
    assert all(len(set(row.tolist())) == 16 for row in new_ids)
    record["top16: rows in which version 1 repeats an expert, and the only ones that differ"] = int(repeats.sum())
    record["top16: rows with 16 or more finite, none of which differs"] = int((finite >= 16).sum())


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("selection", FORMS)
def test_top16_of_many_rows_is_that_of_each(selection: str, count: int):
    generator = torch.Generator(device="cuda").manual_seed(count)
    logits = torch.randn(count, 896, device="cuda", generator=generator)
    bias = torch.randn(896, device="cuda", generator=generator)
    weights, ids = kimi_topk16(logits, bias, selection=selection)
    for i in range(0, count, max(1, count // 8)):
        one_weights, one_ids = kimi_topk16(logits[i : i + 1], bias, selection=selection)
        assert torch.equal(weights[i], one_weights[0])
        assert torch.equal(ids[i], one_ids[0])


def test_top16_of_no_rows_is_empty():
    weights, ids = kimi_topk16(torch.empty(0, 896, device="cuda"), torch.empty(896, device="cuda"))
    assert weights.shape == ids.shape == (0, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": lambda t: t.half()}, r"logits has dtype torch.float16; it takes torch.float32"),
        ({"logits": lambda t: t[:, :895]}, r"logits has shape \(4, 895\); it takes \(4, 896\)"),
        ({"logits": lambda t: t[0]}, r"logits has shape \(896,\); it takes \(1, 896\)"),
        ({"logits": lambda t: t.cpu()}, r"logits is on cpu; kimi_topk16 runs on a GPU"),
        ({"logits": lambda t: torch.randn(896, 4, device="cuda").T}, r"logits has strides \(1, 4\); it must be contig"),
        ({"bias": lambda t: t.cpu()}, r"bias is on cpu; the others are on cuda:0"),
        ({"bias": lambda t: torch.randn(900, device="cuda")[1:897]}, r"bias starts at an address that is not a multi"),
        ({"out": lambda t: (t[0][:3], t[1])}, r"weights has shape \(3, 16\); it takes \(4, 16\)"),
        ({"out": lambda t: (t[0], t[1].long())}, r"ids has dtype torch.int64; it takes torch.int32"),
    ],
)
def test_top16_refuses_what_it_cannot_take(change: dict[str, Any], message: str):
    arguments = {
        "logits": torch.randn(4, 896, device="cuda"),
        "bias": torch.randn(896, device="cuda"),
        "out": (torch.empty(4, 16, device="cuda"), torch.empty(4, 16, dtype=torch.int32, device="cuda")),
    }
    for name, make in change.items():
        arguments[name] = make(arguments[name])
    with pytest.raises(kreg.LaunchError, match=message):
        kimi_topk16(**arguments)
