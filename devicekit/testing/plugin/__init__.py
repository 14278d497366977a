"""The pytest plugin: device fixtures, markers, and a summary of what was exercised.

Loading it imports no torch: torch is imported when the first test that takes a device is collected.
"""

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from devicekit.testing.plugin.summary import Facts

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
_PROPERTY = "devicekit_device"  # of a test's report: the device it was for
_selection_key = pytest.StashKey[selection.Selection]()
_only_accelerator_key = pytest.StashKey[int]()
_facts_key = pytest.StashKey["Facts"]()
_problem_key = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options; their names start with --devicekit, since projects own --device."""
    group = parser.getgroup("devicekit", "devices that tests run on")
    group.addoption(
        "--devicekit-devices",
        metavar="NAMES",
        action="append",
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
    """Registers the markers and checks what the run selects and requires."""
    for line in markers.REGISTERED:
        config.addinivalue_line("markers", line)
    if hasattr(config, "workerinput"):
        return  # whoever started this worker has checked it
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
    if _SPEC not in metafunc.fixturenames:
        return
    specs = _selection(metafunc.config).specs
    if "devices" in metafunc.fixturenames:
        # There is one CPU. Where nothing else was selected, the test is skipped and says so.
        specs = [spec for spec in specs if spec != "cpu"] or specs
    metafunc.parametrize(_SPEC, specs, ids=specs, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Checks the markers, applies those of each device, and leaves out what was not asked for."""
    try:
        _mark(config, items)
    except pytest.UsageError as error:
        if not hasattr(config, "workeroutput"):
            raise
        # pytest-xdist would lose the text: the controller reports it.
        config.stash[_problem_key] = str(error)
        items.clear()
    if config.getoption("--devicekit-only-accelerator"):
        left_out = [item for item in items if not _needs_accelerator(item)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if _needs_accelerator(item)]
            config.stash[_only_accelerator_key] = len(left_out)


def _mark(config: pytest.Config, items: list[pytest.Item]) -> None:
    selected = config.stash.get(_selection_key, None)
    if selected is not None and selected.problem is not None:
        raise pytest.UsageError(selected.problem)
    for item in items:
        spec = _spec_of(item)
        markers.validate(item, has_device=spec is not None)
        if spec is None:
            continue
        item.user_properties.append((_PROPERTY, spec))
        for mark in markers.on_device(item, spec.partition(":")[0]):
            reason = f"{spec}: {mark.kwargs.get('reason', 'expected to fail here')}"
            if mark.name == "devicekit_skip":
                item.add_marker(pytest.mark.skip(reason=reason))
            else:
                options = {"strict": True, **mark.kwargs, "reason": reason}
                item.add_marker(pytest.mark.xfail(**options))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(request: pytest.FixtureRequest) -> Generator[None, object, object]:
    """Lets a fixture that outlives its simulated test be torn down in a simulation as well."""
    if request.scope == "function" or not running.is_simulated():
        return (yield)
    resumption = running.Resumption()
    # Finalizers run in the opposite order: this one after all others of the fixture.
    request.addfinalizer(resumption.end)
    value = yield
    request.addfinalizer(resumption.begin)
    return value


# No wrapper, and not first: a skip must come after the set-up of other plugins, as they undo it
# in the teardown.
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Starts what a device test runs in: its simulation, and the state that is put back."""
    spec = _spec_of(item)
    if spec is not None:
        running.enter(item, spec)
    for mark in item.iter_markers("devicekit_requires"):
        missing = running.missing(markers.requirement(mark, item), spec)
        if missing is not None:
            raise pytest.skip.Exception(missing, _use_item_location=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Makes the checks that the test's markers ask for around its body."""
    spec = _spec_of(item)
    if spec is None:
        return (yield)
    from devicekit.testing.plugin import checks

    with checks.checked(item, spec):
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
        explanation = _explanation(call.excinfo.value)
        if explanation is not None:
            report.sections.append(("devicekit", explanation))
    return report


# What a worker of pytest-xdist knows reaches the controller, which writes the summary.


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hands a worker's selection to the controller, whose exit code tells of a worker's mistake."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["devicekit"] = _facts(session.config)
    elif session.config.stash.get(_problem_key, None) is not None:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Takes the selection from a worker that has ended."""
    facts: Facts | None = getattr(node, "workeroutput", {}).get("devicekit")
    if facts is None:
        return
    stash = node.config.stash  # type: ignore[attr-defined]
    before = stash.get(_facts_key, facts)
    # All workers collect the same tests; one that ended early may not have come that far.
    facts["specs"] = facts["specs"] or before["specs"]
    facts["left_out"] = facts["left_out"] or before["left_out"]
    facts["files"] = [*before["files"], *facts["files"]]
    stash[_facts_key] = facts
    if facts["problem"] is not None:
        stash[_problem_key] = facts["problem"]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Says on which devices how many tests ran, and what was not exercised and why."""
    from devicekit.testing.plugin import summary

    problem = config.stash.get(_problem_key, None)
    if problem is not None:
        terminalreporter.write_line(f"ERROR: {problem}", red=True)
        return
    facts = config.stash.get(_facts_key, None) or _facts(config)
    summary.remove(facts["files"])
    said = facts["specs"] or facts["only_accelerator"]
    if not said or config.getoption("--collect-only"):
        return
    reports = [
        (str(dict(report.user_properties)[_PROPERTY]), outcome, report)
        for outcome, found in terminalreporter.stats.items()
        for report in found
        if isinstance(report, pytest.TestReport) and _PROPERTY in dict(report.user_properties)
    ]
    terminalreporter.write_sep("-", "devicekit")
    for line in summary.lines(facts, reports):
        terminalreporter.write_line(line)


def _explanation(error: BaseException) -> str | None:
    """Explains a failure, or what it was raised from: libraries put their own words around it."""
    from devicekit.diagnosis import explain

    link: BaseException | None = error
    try:
        while link is not None:
            explanation = explain(link)
            if explanation is not None:
                return str(explanation)
            link = link.__cause__
    # The failure itself is reported in any case; an error here would end the whole run.
    except Exception as own:
        return f"no explanation: {type(own).__name__}: {own}"
    return None


def _facts(config: pytest.Config) -> "Facts":
    selected = config.stash.get(_selection_key, None)
    return {
        "specs": selected.specs if selected else [],
        "left_out": selected.left_out if selected else {},
        "only_accelerator": config.stash.get(_only_accelerator_key, 0),
        "files": running.locked_files(),
        "problem": config.stash.get(_problem_key, None),
    }


def _spec_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get(_SPEC) if callspec is not None else None


def _needs_accelerator(item: pytest.Item) -> bool:
    spec = _spec_of(item)
    if spec is not None:
        return spec not in ("cpu", "meta")
    return any(mark.args[0] != "cpu" for mark in item.iter_markers("devicekit_requires"))


def _selection(config: pytest.Config) -> selection.Selection:
    if _selection_key not in config.stash:
        config.stash[_selection_key] = selection.select(config)
    return config.stash[_selection_key]
