"""Sizes that the device code and the host must agree on: the model's widths and the staging memory.

Pure arithmetic: importing this module imports no compiler. All sizes are in bytes unless a name says otherwise.

One rank's staging memory is two slots, used in turn by the parity of the epoch, and for ``pull`` the flags::

    0                slot_bytes        2 * slot_bytes
    | slot, epoch even | slot, epoch odd | flags [ctas][world_size] of FLAG_BYTES (pull only)

A ``pull`` slot holds the rank's own payload as it is. A ``push`` slot holds the payload of all ranks, in rank order,
as packets of 4 data bytes and 4 epoch bytes: twice the payload. Staging memory and epoch counters start as zeros.
"""

from __future__ import annotations

EXPERTS = 896
"""Router logits per row."""

TOP = 16
"""Experts selected per row."""

DOWN_BYTES = 3584 * 2
"""The whole ``down`` row of the fused kernel: 3584 bf16."""

ROUTER_BYTES = EXPERTS * 4
"""The whole router row of the fused kernel: 896 f32."""

PACK_BYTES = 16
"""Rows are whole packs; ``pull`` moves one pack per access."""

FLAG_BYTES = 32
"""Distance between two flags: one L2 sector each, so that polling one does not slow the store to the next."""

PAIR_CTAS = 4
"""CTAs of every launch of the plain gather, and epoch counters (u32) per rank.

Fixed, so that all epochs advance in step. For 8 rows in a world of 2, 4 CTAs took 4.2 us where 2 took 6.8 and 8
took 3.1; for one row 4 took as long as 2, 8 took 0.1 to 0.2 us longer (H200, 2026-12-01).
"""

FUSED_CTAS = 2
"""CTAs of every launch of the fused kernel, and epoch counters (u32) per rank: one routes, one moves ``down``."""


def slot_bytes(*, transport: str, world_size: int, payload_bytes: int) -> int:
    """Return the size of one slot for launches in which each rank contributes up to ``payload_bytes``."""
    return payload_bytes if transport == "pull" else 2 * world_size * payload_bytes


def staging_bytes(*, transport: str, world_size: int, slot: int, ctas: int) -> int:
    """Return the size of one rank's whole staging memory, given the size of one slot and the kernel's CTAs."""
    return 2 * slot + (ctas * world_size * FLAG_BYTES if transport == "pull" else 0)


def fused_slot_bytes(*, transport: str, world_size: int) -> int:
    """Return the size of one slot of the fused kernel."""
    payload = (ROUTER_BYTES + DOWN_BYTES) // world_size
    return slot_bytes(transport=transport, world_size=world_size, payload_bytes=payload)


def fused_down_offset(*, transport: str, world_size: int) -> int:
    """Return where ``down`` starts within a slot of the fused kernel: behind the router's share."""
    return slot_bytes(transport=transport, world_size=world_size, payload_bytes=ROUTER_BYTES // world_size)
