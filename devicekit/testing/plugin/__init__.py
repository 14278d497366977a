"""The pytest plugin: device fixtures, markers, and a summary of what was exercised.

Loading it imports no torch: torch is imported when the first test that takes a device is collected.
"""

import sys
from collections import Counter
from collections.abc import Generator
from typing import TypedDict

import pytest

import devicekit
from devicekit.testing.plugin import markers, running, selection
from devicekit.testing.plugin.fixtures import (
    _devicekit_spec,
    device,
    devices,
    fake_nvml,
    no_accelerator,
    simulated_accelerator,
    simulated_cuda,
)

# What pytest finds in this module; the hooks below, and these fixtures.
__all__ = [
    "_devicekit_spec",
    "device",
    "devices",
    "fake_nvml",
    "no_accelerator",
    "simulated_accelerator",
    "simulated_cuda",
]

_SPEC = "_devicekit_spec"
_PROPERTY = "devicekit_device"
_selection_key = pytest.StashKey[selection.Selection]()
_only_accelerator_key = pytest.StashKey[int]()
_facts_key = pytest.StashKey["Facts"]()


class Facts(TypedDict):
    """What the summary says, in a form that travels between processes."""

    specs: list[str]
    left_out: dict[str, str]
    only_accelerator: int


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options; their names start with --devicekit, since projects own --device."""
    group = parser.getgroup("devicekit", "devices that tests run on")
    group.addoption(
        "--devicekit-devices",
        metavar="NAMES",
        help="comma-separated devices for tests that take `device`: names such as cpu, cuda, sim; "
        "auto (default): the CPU and each accelerator, or the simulated one where there is none; "
        "all: the simulated one as well",
    )
    group.addoption(
        "--devicekit-require",
        metavar="TYPE[:COUNT]",
        action="append",
        default=[],
        help="stop with exit code 4 unless this many devices can be used",
    )
    group.addoption(
        "--devicekit-only-accelerator",
        action="store_true",
        help="deselect the tests that do not run on an accelerator",
    )
    parser.addini("devicekit_devices", "devices that tests run on", type="string", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers and checks what the run requires."""
    for line in markers.REGISTERED:
        config.addinivalue_line("markers", line)
    selection.check(config)
    for value in config.getoption("--devicekit-require"):
        for requirement in value.split(","):
            selection.require(requirement.strip())


def pytest_report_header(config: pytest.Config) -> str:
    """One line: the version and the devices asked for."""
    text, source = selection.requested(config)
    return f"devicekit {devicekit.__version__}: devices {text} ({source})"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test that takes our `device` or `devices` once a device."""
    if _SPEC in metafunc.fixturenames:
        specs = _selection(metafunc.config).specs
        metafunc.parametrize(_SPEC, specs, ids=specs, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Checks the markers, applies those of each device, and leaves out what was not asked for."""
    for item in items:
        spec = _spec_of(item)
        markers.validate(item, has_device=spec is not None)
        if spec is None:
            continue
        type_ = spec.partition(":")[0]
        item.user_properties.append((_PROPERTY, spec))
        for mark in markers.on_device(item, type_):
            reason = f"{spec}: {mark.kwargs.get('reason', 'expected to fail here')}"
            if mark.name == "devicekit_skip":
                item.add_marker(pytest.mark.skip(reason=reason))
            else:
                options = {"strict": True, **mark.kwargs, "reason": reason}
                item.add_marker(pytest.mark.xfail(**options))
    if config.getoption("--devicekit-only-accelerator"):
        left_out = [item for item in items if (_spec_of(item) or "cpu") == "cpu"]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in set(left_out)]
            config.stash[_only_accelerator_key] = len(left_out)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Starts what a device test runs in: its simulation, and the state that is put back."""
    spec = _spec_of(item)
    if spec is not None:
        running.enter(item, spec)
    for mark in item.iter_markers("devicekit_requires"):
        needed = markers.requirement(mark, item)
        missing = running.missing(needed, spec)
        if missing is not None:
            pytest.skip(missing)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Makes the checks that the test's markers ask for around its body."""
    spec = _spec_of(item)
    if spec is None:
        return (yield)
    with running.checked(item, spec):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Puts back random numbers and the default device, and ends the simulation."""
    try:
        return (yield)
    finally:
        running.leave(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds a section that explains a device error to the report of a failed test."""
    report = yield
    if report.failed and call.excinfo is not None and "torch" in sys.modules:
        from devicekit.diagnosis import explain

        explanation = explain(call.excinfo.value)
        if explanation is not None:
            report.sections.append(("devicekit", str(explanation)))
    return report


# What a worker of pytest-xdist knows reaches the controller, which writes the summary.


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hands a worker's selection to the controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["devicekit"] = _facts(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Takes the selection from a worker that has ended."""
    config = node.config  # type: ignore[attr-defined]
    facts = getattr(node, "workeroutput", {}).get("devicekit")
    if facts:
        config.stash[_facts_key] = facts


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says on which devices how many tests ran, and what was not exercised and why."""
    facts = config.stash.get(_facts_key, None) or _facts(config)
    ran: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            spec = dict(getattr(report, "user_properties", ())).get(_PROPERTY)
            if spec is None or not isinstance(report, pytest.TestReport):
                continue
            if outcome == "skipped":
                skipped[spec] += 1
            elif report.when == "call":
                ran[spec] += 1
    if not facts["specs"] and not facts["only_accelerator"]:
        return
    counts = [
        f"{spec} {ran[spec]}" + (f" ({skipped[spec]} skipped)" if skipped[spec] else "")
        for spec in facts["specs"]
    ]
    terminalreporter.write_sep("-", "devicekit")
    if counts:
        terminalreporter.write_line(f"tests run on: {', '.join(counts)}")
    for type_, reason in facts["left_out"].items():
        terminalreporter.write_line(f"not exercised: {type_}: {reason}")
    if facts["only_accelerator"]:
        terminalreporter.write_line(
            f"left out by --devicekit-only-accelerator: {facts['only_accelerator']} tests"
        )


def _facts(config: pytest.Config) -> Facts:
    selected = config.stash.get(_selection_key, None)
    return {
        "specs": selected.specs if selected else [],
        "left_out": selected.left_out if selected else {},
        "only_accelerator": config.stash.get(_only_accelerator_key, 0),
    }


def _spec_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get(_SPEC) if callspec is not None else None


def _selection(config: pytest.Config) -> selection.Selection:
    if _selection_key not in config.stash:
        config.stash[_selection_key] = selection.select(config)
    return config.stash[_selection_key]
