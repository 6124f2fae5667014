"""Observing launches: who is told of what, and that nothing is paid where nobody asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from builders import make_artifact
from cuda.bindings import driver
from fake_driver import FakeDriver

from kreg import Artifact, LaunchError, launch, loader
from kreg.launch import Launch, observe_launches


@pytest.fixture(autouse=True)
def _nobody_watches() -> Iterator[None]:
    observe_launches(None)
    yield
    observe_launches(None)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver().install(monkeypatch)
    made.parameter_sizes = (8, 8, 4)
    return made


def bind(size: int = 1) -> Callable[..., None]:
    return Launch(loader.load(make_artifact(size)), (1, 2, 3)).bind((1, 1, 1), int)


def test_observer_gets_the_very_artifact_that_is_launched(fake: FakeDriver):
    seen: list[Artifact] = []
    observe_launches(seen.append)
    kernel = loader.load(make_artifact(2))
    call = Launch(kernel, (1, 2, 3)).bind((1, 1, 1), int)
    assert seen == []
    call()
    call()
    assert [artifact is kernel.artifact for artifact in seen] == [True, True]


def test_observer_is_told_before_a_launch_that_fails(fake: FakeDriver):
    seen: list[Artifact] = []
    observe_launches(seen.append)
    call = bind()
    fake.errors["cuLaunchKernel"] = [driver.CUresult.CUDA_ERROR_LAUNCH_FAILED]
    with pytest.raises(LaunchError):
        call()
    assert (len(seen), fake.launches) == (1, [])


def test_second_observer_is_told_only_of_what_is_bound_after_it(fake: FakeDriver):
    told: list[str] = []
    observe_launches(lambda _: told.append("first"))
    early = bind(1)
    observe_launches(lambda _: told.append("second"))
    late = bind(2)
    late()
    early()
    assert told == ["second", "first"]


@pytest.mark.parametrize("is_reset", [False, True])
def test_launch_is_not_wrapped_where_nobody_watches(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, is_reset: bool):
    wrapped: list[object] = []
    real = launch._observed
    monkeypatch.setattr(launch, "_observed", lambda *given: wrapped.append(given) or real(*given))
    if is_reset:
        observe_launches(lambda _: None)
        bind()
        assert len(wrapped) == 1
        observe_launches(None)
    before = len(wrapped)
    bind()()
    assert len(wrapped) == before
    assert len(fake.launches) == 1


def test_error_of_the_observer_reaches_the_caller_and_nothing_is_launched(fake: FakeDriver):
    def refuse(_: Artifact) -> None:
        raise RuntimeError("not this one")

    observe_launches(refuse)
    call = bind()
    with pytest.raises(RuntimeError, match=r"^not this one$"):
        call()
    assert fake.launches == []
