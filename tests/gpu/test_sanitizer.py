"""Our kernels under compute-sanitizer; and that it finds faults that were put there on purpose."""

from collections.abc import Callable

import pytest

from tests.gpu.sanitize import TOOLS, Verdict, kernels, sanitize, sanitizer

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Once without a tool: it would slow down the compiler. Where the tool cannot see this device nothing is tested."""
    if sanitizer() is None:
        pytest.skip("no compute-sanitizer here")
    done = kernels()
    assert done.returncode == 0, done.stderr[-3000:]


def checked(tool: str, *names: str) -> Verdict:
    verdict = sanitize(tool, names)
    if "not supported" in verdict.output:
        pytest.skip(f"compute-sanitizer does not support this device: {verdict.summary}")
    return verdict


@pytest.mark.parametrize("tool", list(TOOLS))
def test_our_kernels_are_clean(tool: str, record_property: Callable[[str, object], None]) -> None:
    verdict = checked(tool)
    record_property("summary", verdict.summary)
    assert verdict.worked, verdict.output[-3000:]
    assert not verdict.found, verdict.output[-3000:]


@pytest.mark.parametrize(("tool", "fault"), [("memcheck", "planted-bounds"), ("racecheck", "planted-race")])
def test_a_planted_fault_is_found(tool: str, fault: str) -> None:
    verdict = checked(tool, fault)
    assert verdict.found, verdict.output[-3000:]
