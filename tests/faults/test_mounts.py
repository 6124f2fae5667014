"""Stores on real file systems: full, out of inodes, read-only. Needs to be allowed to mount."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders import HERE, child_environment
from fake_backend import KERNEL

import kreg


def in_namespace(script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script with mounts of its own, which end with it."""
    flags = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    command = ["unshare", *flags, "--propagation", "private", "sh", "-euc", script]
    return subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=120, check=False)


@functools.cache
def can_mount() -> bool:
    """Say whether this user may mount."""
    return shutil.which("unshare") is not None and in_namespace("mount -t tmpfs none /mnt").returncode == 0


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """Return a folder to mount on."""
    if not can_mount():
        pytest.skip("mounting is not allowed here")
    (tmp_path / "mounted").mkdir()
    return tmp_path / "mounted"


def run(mount: str, *arguments: str) -> None:
    """Mount, and do what ``on_mount.py`` does by that name; it must succeed."""
    words = " ".join(f"'{word}'" for word in (sys.executable, str(HERE / "faults" / "on_mount.py"), *arguments))
    done = in_namespace(f"{mount}\n{words}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("limit", ["size=128k", "size=64m,nr_inodes=60"])
def test_store_on_a_full_file_system_costs_one_warning(mounted: Path, limit: str):
    run(f"mount -t tmpfs -o {limit} none '{mounted}'", "fill", f"{mounted}/store")


def test_store_on_a_read_only_mount_is_read(mounted: Path, tmp_path: Path):
    kreg.resolve(KERNEL, size=1, target="sm_90a", store=tmp_path / "filled")
    mount = f"mount --bind '{tmp_path}/filled' '{mounted}'; mount -o remount,ro,bind '{mounted}'"
    run(mount, "read_only", str(mounted), str(tmp_path))
