"""Installs made-up distributions that offer kernels through the entry-point group ``kreg.kernels``."""

from __future__ import annotations

from pathlib import Path


def install_plugin(folder: Path, name: str = "plugin", **entries: str) -> str:
    """Make a folder with an installed distribution that has these entry points; return the folder."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = ["[kreg.kernels]", *(f"{entry} = {value}" for entry, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder)
