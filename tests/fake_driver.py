"""A CUDA driver that remembers what it was asked, for tests of the loader and of launches without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import pytest
from cuda.bindings import driver

from kreg import loader

OK = driver.CUresult.CUDA_SUCCESS


class FakeDriver:
    """One device of a compute capability. ``errors`` maps a call's name to the results it returns, in turn."""

    def __init__(self, capability: tuple[int, int] = (9, 0)) -> None:
        self.capability = capability
        self.errors: dict[str, list[driver.CUresult]] = {}
        self.calls: list[str] = []
        self.launches: list[tuple[tuple[Any, ...], bytes]] = []
        self.parameter_sizes: Sequence[int] = ()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
        """Put this driver in the place of the real one, and forget what was loaded."""
        answers = {
            "cuInit": lambda _: (),
            "cuDriverGetVersion": lambda: (13000,),
            "cuDeviceGetCount": lambda: (1,),
            "cuDeviceGet": lambda ordinal: (ordinal,),
            "cuDeviceGetAttribute": self._attribute,
            "cuDeviceGetName": lambda *_: (b"Made-up GPU\0\0",),
            "cuDevicePrimaryCtxRetain": lambda _: (driver.CUcontext(4096),),
            "cuCtxPushCurrent": lambda _: (),
            "cuCtxPopCurrent": lambda: (driver.CUcontext(0),),
            "cuModuleLoadData": lambda _: (driver.CUmodule(8192),),
            "cuModuleGetFunction": lambda *_: (driver.CUfunction(12288 + len(self.calls)),),
            "cuFuncLoad": lambda _: (),
            "cuFuncSetAttribute": lambda *_: (),
            "cuLaunchKernel": self._launch,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(driver, name, self._wrapped(name, answer))
        for remembered in (loader._loaded, loader._functions, loader._shared, loader._contexts, loader._targets):
            monkeypatch.setattr(loader, _name_of(remembered), {})
        return self

    def _wrapped(self, name: str, answer: Any) -> Any:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            queue = self.errors.get(name, [])
            error = queue.pop(0) if queue else OK
            return (error, *answer(*arguments)) if error == OK else (error, *[None] * 1)

        return call

    def _attribute(self, attribute: driver.CUdevice_attribute, _: int) -> tuple[int]:
        return (self.capability[attribute.name.endswith("MINOR")],)

    def _launch(self, *arguments: Any) -> tuple[()]:
        pointers = ctypes.cast(arguments[9], ctypes.POINTER(ctypes.c_void_p))
        values = b"".join(ctypes.string_at(pointers[i], size) for i, size in enumerate(self.parameter_sizes))
        self.launches.append((arguments[1:9], values))
        return ()


def _name_of(remembered: dict[Any, Any]) -> str:
    return next(name for name, value in vars(loader).items() if value is remembered)
