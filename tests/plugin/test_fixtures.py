"""The fixtures that tests ask for by name, and that one test leaves nothing for the next."""

import pytest


def test_no_accelerator(no_accelerator: None) -> None:
    import torch

    from devicekit import Device
    from devicekit.probe import accelerator_types, probe

    assert not any(probe(type_).count for type_ in accelerator_types())
    assert Device() == "cpu"
    assert Device.available() == ["cpu"]
    assert torch.accelerator.current_accelerator() is None
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0


def test_simulated_cuda(simulated_cuda: object) -> None:
    import torch

    layer = torch.nn.Linear(2, 1).cuda()
    assert layer(torch.ones(1, 2, device="cuda:0")).is_cuda
    assert torch.cuda.device_count() == 2


def test_simulated_accelerator(simulated_accelerator: object) -> None:
    import torch

    from devicekit import Device

    assert Device() == "sim:0"
    assert torch.accelerator.device_count() == 2


def test_fake_nvml(fake_nvml: object) -> None:
    import pynvml

    assert pynvml is fake_nvml


def test_a_test_leaves_nothing_for_the_next(pytester: pytest.Pytester) -> None:
    # In a fresh process: once registered, the backend stays, and only the difference can show it.
    pytester.makepyfile(
        """
        import torch

        def seen():
            return (
                torch.accelerator.is_available(),
                torch.accelerator.current_accelerator(),
                torch.accelerator.device_count(),
                torch.cuda.is_available(),
                torch.cuda.device_count(),
                torch.cuda.is_initialized(),
                torch.get_default_device(),
                torch.nn.Module.cuda,
                torch.Tensor.cuda,
            )

        before = seen()

        def test_fixture(simulated_accelerator): assert seen() != before
        def test_after_the_fixture(): assert seen() == before
        def test_cuda(simulated_cuda): assert torch.cuda.device_count() == 2
        def test_after_cuda(): assert seen() == before
        def test_device(device): assert (device == "cpu") == (seen() == before)
        def test_after_the_device(): assert seen() == before
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=7)
