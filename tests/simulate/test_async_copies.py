"""`simulate(async_copies=True)`: a copy lands when it is waited for, and mistakes show."""

import copy
import gc
import io
import math
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from devicekit.testing import Simulation, simulate

DEVICE = "sim:0"


@pytest.fixture(autouse=True)
def simulation() -> Iterator[Simulation]:
    with simulate(async_copies=True) as running:
        yield running


def pinned(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).pin_memory()


def on_side_stream(x: torch.Tensor) -> tuple[torch.Tensor, torch.Stream]:
    side = torch.sim.Stream()
    with torch.sim.stream(side):
        return x.to(DEVICE, non_blocking=True), side


def is_poison(x: torch.Tensor) -> bool:
    return bool(x.isnan().all())


# ------------------------------------------------------------------ host to device


def test_kernel_on_the_stream_of_the_copy_lands_it_first() -> None:
    x = pinned(1, 2).to(DEVICE, non_blocking=True)
    assert (x + 1).tolist() == [2, 3]


def test_missing_wait_reads_poison() -> None:
    x, _ = on_side_stream(pinned(1, 2))
    assert is_poison(x + 1)


@pytest.mark.parametrize("how", ["wait_stream", "wait_event", "event.wait", "accelerator"])
def test_waiting_for_the_copys_stream_orders_the_kernel_behind_it(how: str) -> None:
    x, side = on_side_stream(pinned(1, 2))
    main = torch.sim.current_stream()
    if how == "wait_stream":
        main.wait_stream(side)
    elif how == "accelerator":
        torch.accelerator.current_stream().wait_stream(side)
    else:
        event = torch.Event(DEVICE)
        event.record(side)
        if how == "wait_event":
            main.wait_event(event)
        else:
            event.wait(main)
    assert (x + 1).tolist() == [2, 3]


def test_an_event_recorded_before_the_copy_does_not_help() -> None:
    side = torch.sim.Stream()
    event = side.record_event()
    with torch.sim.stream(side):
        x = pinned(1, 2).to(DEVICE, non_blocking=True)
    torch.sim.current_stream().wait_event(event)
    assert is_poison(x + 1)


def test_order_is_passed_on_from_stream_to_stream() -> None:
    x, side = on_side_stream(pinned(1, 2))
    middle = torch.sim.Stream()
    middle.wait_stream(side)
    torch.sim.current_stream().wait_stream(middle)
    assert (x + 1).tolist() == [2, 3]


@pytest.mark.parametrize(
    "wait",
    [
        lambda side: side.synchronize(),
        lambda side: side.record_event().synchronize(),
        lambda side: torch.sim.synchronize(),
        lambda side: torch.sim.synchronize(DEVICE),
        lambda side: torch.accelerator.synchronize(),
    ],
    ids=["stream", "event", "device", "device by name", "accelerator"],
)
def test_host_that_waits_sees_the_copy_on_every_stream(wait) -> None:
    x, side = on_side_stream(pinned(1, 2))
    wait(side)
    assert x.tolist() == [1, 2]


def test_waiting_for_another_device_does_not_help() -> None:
    x, _ = on_side_stream(pinned(1, 2))
    torch.sim.synchronize("sim:1")
    assert is_poison(x.cpu())


def test_source_changed_before_the_copy_lands_is_seen() -> None:
    buffer = pinned(1, 2)
    x = buffer.to(DEVICE, non_blocking=True)
    buffer.fill_(7)
    assert x.tolist() == [7, 7]


def test_source_changed_after_the_host_waited_is_not_seen() -> None:
    buffer = pinned(1, 2)
    x = buffer.to(DEVICE, non_blocking=True)
    torch.sim.current_stream().synchronize()
    buffer.fill_(7)
    assert x.tolist() == [1, 2]


def test_pageable_source_is_read_at_once() -> None:
    source = torch.tensor([1.0, 2.0])
    x, side = on_side_stream(source)
    source.fill_(7)
    assert is_poison(x + 1)  # but it lands late all the same
    side.synchronize()
    assert x.tolist() == [1, 2]


def test_source_behind_a_temporary_is_read_at_once() -> None:
    buffer = torch.arange(6.0).view(2, 3).pin_memory()
    x = buffer.t().to(DEVICE, non_blocking=True)  # same strides: no temporary
    y = torch.empty(3, 2, device=DEVICE)
    y.copy_(buffer.t(), non_blocking=True)
    buffer.fill_(7)
    torch.sim.synchronize()
    assert x.unique().tolist() == [7]
    assert y.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_conversion_reads_the_pinned_source_late() -> None:
    buffer = pinned(1, 2)
    x = buffer.to(DEVICE, dtype=torch.float64, non_blocking=True)
    buffer.fill_(7)
    assert x.tolist() == [7, 7]


def test_reused_buffer_is_found_although_a_kernel_came_first() -> None:
    buffer = pinned(1, 2)
    x = buffer.to(DEVICE, non_blocking=True)
    y = x * 2
    buffer.fill_(7)
    with pytest.raises(RuntimeError, match=r"a pinned buffer \(float32\[2\]\) was changed while"):
        y.sum().item()


def test_reused_buffer_is_found_at_the_end_of_the_simulation(simulation: Simulation) -> None:
    buffer = pinned(1, 2)
    x = buffer.to(DEVICE, non_blocking=True)
    x * 2
    buffer.fill_(7)
    with pytest.raises(RuntimeError, match="a pinned buffer"):
        simulation.stop()


def test_buffer_may_be_reused_after_an_event_of_the_copy() -> None:
    buffer, event = pinned(0, 0), torch.Event(DEVICE)
    total = torch.zeros(2, device=DEVICE)
    for step in range(4):
        buffer.fill_(step)
        total += buffer.to(DEVICE, non_blocking=True)
        event.record()
        event.synchronize()
    assert total.tolist() == [6, 6]


def test_blocking_copy_waits_for_the_stream() -> None:
    buffer = pinned(1, 2)
    x = buffer.to(DEVICE, non_blocking=True)
    torch.ones(1).to(DEVICE)
    buffer.fill_(7)
    assert x.tolist() == [1, 2]


def test_dropping_a_pinned_source_is_no_mistake() -> None:
    # Torch's host allocator keeps pinned memory until the copies that read it are done.
    x = pinned(1, 2).to(DEVICE, non_blocking=True)
    gc.collect()
    assert x.tolist() == [1, 2]


def test_dropping_the_destination_drops_the_copy() -> None:
    before = torch.sim.memory_allocated()
    x = pinned(1, 2).to(DEVICE, non_blocking=True)
    del x
    torch.sim.synchronize()
    assert torch.sim.memory_allocated() == before


def test_two_copies_into_one_tensor_land_in_order() -> None:
    x = torch.zeros(2, device=DEVICE)
    x.copy_(pinned(1, 1), non_blocking=True)
    x.copy_(pinned(2, 2), non_blocking=True)
    assert x.tolist() == [2, 2]


def test_copy_into_a_view_leaves_the_rest() -> None:
    x = torch.zeros(4, device=DEVICE)
    x[1:3].copy_(pinned(1, 2), non_blocking=True)
    assert x.tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize("device", ["sim:0", "sim:1"])
def test_each_device_has_streams_of_its_own(device: str) -> None:
    x = pinned(1, 2).to(device, non_blocking=True)
    assert (x + 1).tolist() == [2, 3]


def test_copy_between_devices_is_a_kernel_of_both() -> None:
    x = pinned(1, 2).to("sim:0", non_blocking=True)
    y = x.to("sim:1", non_blocking=True)
    assert y.tolist() == [1, 2]


def test_copy_between_devices_orders_their_streams() -> None:
    host = torch.ones(2, device="sim:1").to("cpu", non_blocking=True)
    torch.sim.synchronize("sim:0")
    assert is_poison(host)
    torch.ones(2, device="sim:1").to("sim:0")
    torch.sim.synchronize("sim:0")
    assert host.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float32, math.nan),
        (torch.float16, math.nan),
        (torch.bfloat16, math.nan),
        (torch.float8_e4m3fn, math.nan),
        (torch.int64, 2**63 - 1),
        (torch.int8, 127),
        (torch.uint8, 255),
        (torch.bool, True),
    ],
    ids=str,
)
def test_poison_of_each_type(dtype: torch.dtype, expected: float) -> None:
    x, _ = on_side_stream(torch.zeros(2).to(dtype).pin_memory())
    found = x.cpu().tolist()[0]
    assert found == expected or (math.isnan(expected) and math.isnan(found))


def test_poison_of_complex() -> None:
    x, _ = on_side_stream(torch.zeros(2, dtype=torch.complex64).pin_memory())
    assert math.isnan(x.cpu().tolist()[0].real)


# ------------------------------------------------------------------ device to host


def test_stale_read_on_the_host_sees_poison() -> None:
    host = torch.ones(2, device=DEVICE).to("cpu", non_blocking=True)
    assert is_poison(host)


def test_host_read_after_waiting() -> None:
    host = torch.ones(2, device=DEVICE).to("cpu", non_blocking=True)
    torch.sim.current_stream().synchronize()
    assert host.tolist() == [1, 1]


def test_order_among_streams_means_nothing_to_the_host() -> None:
    x, side = torch.ones(2, device=DEVICE), torch.sim.Stream()
    side.wait_stream(torch.sim.current_stream())
    with torch.sim.stream(side):
        host = x.to("cpu", non_blocking=True)
    torch.sim.current_stream().wait_stream(side)
    x + 1
    assert is_poison(host)


def test_later_kernel_on_the_same_stream_does_not_change_what_is_copied() -> None:
    x = torch.ones(2, device=DEVICE)
    host = x.to("cpu", non_blocking=True)
    x.zero_()
    torch.sim.synchronize()
    assert host.tolist() == [1, 1]


def test_kernel_on_another_stream_may_change_what_is_copied() -> None:
    x, side = torch.ones(2, device=DEVICE), torch.sim.Stream()
    side.wait_stream(torch.sim.current_stream())
    with torch.sim.stream(side):
        host = x.to("cpu", non_blocking=True)
    x.zero_()
    torch.sim.synchronize()
    assert host.tolist() == [0, 0]


def test_copy_on_a_stream_that_did_not_wait_for_the_kernel_reads_poison() -> None:
    x, side = torch.ones(2, device=DEVICE), torch.sim.Stream()
    with torch.sim.stream(side):
        host = x.to("cpu", non_blocking=True)
    torch.sim.synchronize()
    assert is_poison(host)


def test_copy_needs_no_wait_once_the_host_has_waited() -> None:
    x, side = torch.ones(2, device=DEVICE), torch.sim.Stream()
    torch.sim.synchronize()
    with torch.sim.stream(side):
        host = x.to("cpu", non_blocking=True)
    side.synchronize()
    assert host.tolist() == [1, 1]


@pytest.mark.parametrize("recorded", [False, True])
def test_freed_device_source_on_another_stream(recorded: bool) -> None:
    x, side = torch.ones(2, device=DEVICE), torch.sim.Stream()
    side.wait_stream(torch.sim.current_stream())
    with torch.sim.stream(side):
        host = x.to("cpu", non_blocking=True)
    if recorded:
        x.record_stream(side)
    del x
    side.synchronize()
    assert is_poison(host) != recorded


def test_freed_device_source_on_its_own_stream_is_safe() -> None:
    host = torch.ones(2, device=DEVICE).to("cpu", non_blocking=True)
    torch.sim.synchronize()
    assert host.tolist() == [1, 1]


def test_copy_to_pageable_memory_is_blocking() -> None:
    host = torch.zeros(2)
    host.copy_(torch.ones(2, device=DEVICE), non_blocking=True)
    assert host.tolist() == [1, 1]


def test_blocking_copy_to_the_host() -> None:
    assert torch.ones(2, device=DEVICE).cpu().tolist() == [1, 1]
    assert torch.ones(2, device=DEVICE).to("cpu").tolist() == [1, 1]


def test_round_trip_through_one_stream() -> None:
    x = pinned(1, 2).to(DEVICE, non_blocking=True)
    host = x.to("cpu", non_blocking=True)
    y = host.to(DEVICE, non_blocking=True)
    torch.sim.synchronize()
    assert host.tolist() == [1, 2]
    assert y.tolist() == [1, 2]


def test_kernel_behind_a_chain_of_copies_lands_the_chain() -> None:
    x = pinned(1, 2).to(DEVICE, non_blocking=True)
    y = x.to("cpu", non_blocking=True).to(DEVICE, non_blocking=True)
    assert (y + 1).tolist() == [2, 3]


@pytest.mark.parametrize("kernel", [False, True])
def test_buffer_that_goes_out_and_comes_back_on_one_stream(kernel: bool) -> None:
    buffer = pinned(1, 2)
    x = buffer.to(DEVICE, non_blocking=True)
    y = x * 2 if kernel else torch.full((2,), 5.0, device=DEVICE)
    buffer.copy_(y, non_blocking=True)
    assert is_poison(buffer)
    torch.sim.synchronize()
    assert x.tolist() == [1, 2]
    assert buffer.tolist() == y.tolist()


# ------------------------------------------------------------------ streams and events


def test_query_lets_time_pass_so_that_polling_ends() -> None:
    x, side = on_side_stream(pinned(1, 2))
    event = side.record_event()
    assert not event.query()
    assert event.query()
    assert x.tolist() == [1, 2]
    assert side.query()


def test_elapsed_time() -> None:
    start, end = (torch.Event(DEVICE, enable_timing=True) for _ in range(2))
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    x = pinned(1, 2).to(DEVICE, non_blocking=True)
    end.record()
    with pytest.raises(RuntimeError, match="must be completed"):
        start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    assert x.tolist() == [1, 2]
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(torch.Event(DEVICE))


def test_event_stays_on_its_device() -> None:
    event = torch.Event(DEVICE)
    assert event.device is None or event.device.type == "sim"
    event.record(torch.Stream("sim:1"))
    assert event.device == torch.device("sim:1")
    with pytest.raises(RuntimeError, match="does not match recording stream's device"):
        event.record(torch.Stream("sim:0"))


def test_streams_know_their_device_and_identity() -> None:
    side = torch.Stream("sim:1")
    assert isinstance(side, torch.Stream)
    assert side.device == torch.device("sim:1")
    assert side != torch.Stream("sim:1")
    assert side == torch.sim.Stream(stream_id=side.stream_id, device_index=1)
    assert len({side, torch.sim.Stream(stream_id=side.stream_id, device_index=1)}) == 1
    assert torch.sim.default_stream(1).stream_id == 0
    assert torch.Stream("sim:0", priority=-1).priority == -1
    assert not side.is_capturing()


def test_stream_context_sets_and_restores_stream_and_device() -> None:
    side = torch.Stream("sim:1")
    with side:
        assert torch.accelerator.current_device_index() == 1
        assert torch.sim.current_stream() == side
        with torch.sim.stream(None):
            assert torch.sim.current_stream() == side
    assert torch.accelerator.current_device_index() == 0
    assert torch.sim.current_stream(1) == torch.sim.default_stream(1)


def test_each_thread_has_its_own_current_stream() -> None:
    found: list[torch.Stream] = []
    with torch.Stream(DEVICE):
        thread = threading.Thread(target=lambda: found.append(torch.sim.current_stream()))
        thread.start()
        thread.join()
    assert found == [torch.sim.default_stream()]


def test_streams_of_the_pool_come_round() -> None:
    streams = {torch.Stream(DEVICE).stream_id for _ in range(100)}
    assert len(streams) == 32
    assert 0 not in streams


# ------------------------------------------------------------------ programs


def test_default_device_mode_does_not_disturb_landing() -> None:
    with torch.device(DEVICE):
        x = torch.tensor([1.0, 2.0], device="cpu").pin_memory().to(DEVICE, non_blocking=True)
        torch.sim.synchronize()
    assert x.tolist() == [1, 2]


def test_inference_mode() -> None:
    with torch.inference_mode():
        x = pinned(1, 2).to(DEVICE, non_blocking=True)
    with torch.inference_mode():
        assert (x + 1).tolist() == [2, 3]


def test_module_moved_without_blocking() -> None:
    layer = nn.Linear(2, 2)
    expected = layer(torch.ones(1, 2))
    layer.to(DEVICE, non_blocking=True)
    out = layer(torch.ones(1, 2).to(DEVICE, non_blocking=True))
    torch.testing.assert_close(out.cpu(), expected)


def test_gradients_through_a_late_copy() -> None:
    w = pinned(1, 2).requires_grad_()
    (w.to(DEVICE, non_blocking=True) * 3).sum().backward()
    assert w.grad.tolist() == [3, 3]


@pytest.mark.parametrize("how", ["save", "deepcopy"])
def test_what_reads_storages_is_a_reader_too(how: str) -> None:
    x = pinned(1, 2).to(DEVICE, non_blocking=True)
    if how == "deepcopy":
        assert copy.deepcopy(x).tolist() == [1, 2]
        return
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert torch.load(file, map_location="cpu").tolist() == [1, 2]


def test_leaving_lands_everything(simulation: Simulation) -> None:
    host = torch.ones(2, device=DEVICE).to("cpu", non_blocking=True)
    simulation.stop()
    assert host.tolist() == [1, 1]


def test_without_the_option_copies_land_at_once(simulation: Simulation) -> None:
    simulation.stop()
    with simulate():
        x, _ = on_side_stream(pinned(1, 2))
        assert (x + 1).tolist() == [2, 3]
        assert torch.ones(2, device=DEVICE).to("cpu", non_blocking=True).is_pinned()


def prefetched(batches: list[torch.Tensor], *, wait: bool, keep: bool) -> list[float]:
    """Copy one batch ahead on a side stream, as loaders do; with the mistakes that they make."""
    side = torch.sim.Stream()
    buffer = torch.empty(2).pin_memory()
    sums: list[float] = []
    queue: list[torch.Tensor] = []

    def issue(batch: torch.Tensor) -> None:
        source = batch.pin_memory() if keep else buffer.copy_(batch)
        with torch.sim.stream(side):
            queue.append(source.to(DEVICE, non_blocking=True))

    issue(batches[0])
    for following in [*batches[1:], None]:
        if wait:
            torch.sim.current_stream().wait_stream(side)
        x = queue.pop()
        if following is not None:
            issue(following)
        sums.append((x * 1.0).sum().item())
    return sums


def test_prefetcher_of_one_batch() -> None:
    batches = [torch.full((2,), float(i)) for i in range(4)]
    assert prefetched(batches, wait=True, keep=True) == [0, 2, 4, 6]
    assert all(map(math.isnan, prefetched(batches, wait=False, keep=True)))
    assert prefetched(batches, wait=True, keep=False) != [0, 2, 4, 6]


# ------------------------------------------------------------------ any program


steps = st.lists(
    st.tuples(
        st.sampled_from(["out", "back", "kernel", "fill", "read"]),
        st.integers(0, 2),  # the stream
        st.integers(0, 1),  # the host buffer
        st.integers(0, 1),  # the device tensor
    ),
    max_size=14,
)


def run_program(program: list[tuple[str, int, int, int]], wait: bool) -> list[list[float]]:
    """Run copies and kernels on three streams; with `wait` each is ordered behind the last one."""
    streams = [torch.sim.default_stream(), torch.sim.Stream(), torch.sim.Stream()]
    buffers = [torch.full((2,), float(i)).pin_memory() for i in range(2)]
    tensors = [torch.full((2,), 10.0 + i, device=DEVICE) for i in range(2)]
    torch.sim.synchronize()
    seen = []
    for what, s, b, t in program:
        with torch.sim.stream(streams[s]):
            if what == "out":
                tensors[t].copy_(buffers[b], non_blocking=True)
            elif what == "back":
                buffers[b].copy_(tensors[t], non_blocking=True)
            elif what == "kernel":
                tensors[t].mul_(2).add_(tensors[1 - t])
        if wait:
            for stream in streams:
                stream.wait_stream(streams[s])
        if what in ("fill", "read"):
            if wait:
                streams[s].synchronize()
            if what == "fill":
                buffers[b].add_(1)
            seen.append(buffers[b].tolist())
    torch.sim.synchronize()
    return [*seen, *(x.tolist() for x in (*buffers, *tensors))]


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps)
def test_program_that_waits_computes_what_it_computes_without_the_option(
    program: list[tuple[str, int, int, int]],
) -> None:
    late = run_program(program, wait=True)
    with simulate():
        assert run_program(program, wait=False) == late


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps)
def test_program_that_does_not_wait_ends_all_the_same(
    program: list[tuple[str, int, int, int]],
) -> None:
    before = torch.sim.memory_allocated()
    try:
        run_program(program, wait=False)
    except RuntimeError as error:
        assert "a pinned buffer" in str(error)  # noqa: PT017 - a race need not be there
    torch.sim.synchronize()
    assert torch.sim.memory_allocated() == before
