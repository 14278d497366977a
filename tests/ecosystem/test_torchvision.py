"""torchvision: its tensors, datasets, transforms and models, also on simulated devices."""

import copy
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from interop_page import run_section
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from devicekit import (
    DataLoader,
    DeviceMismatchError,
    MoveError,
    audit,
    find_tensors,
    guard,
    pack,
    pin_memory,
    prefetch_to_device,
    to_device,
    unpack,
)
from devicekit.testing import Simulation, assert_on, assert_same

try:
    from PIL import Image
    from torchvision import datasets, models, ops, tv_tensors
    from torchvision.transforms import v2
except (ImportError, RuntimeError) as error:
    # Built for another torch: RuntimeError "operator torchvision::nms does not exist".
    pytest.skip(
        "needs the torchvision that fits torch: 0.29 for 2.14, 0.28 for 2.13, and so on down to "
        "0.21 for 2.6, both for the CPU or both for CUDA; here with torch "
        f"{torch.__version__} importing it says: {error}",
        allow_module_level=True,
    )

pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.filterwarnings("ignore:RandomErasing.. is currently passing through"),
]

SIZE = (16, 16)
SAME = "expected all tensors to be on the same device"


@pytest.fixture(params=["meta", "sim", "cuda"])
def target(request: pytest.FixtureRequest) -> torch.device:
    """Another device than the CPU."""
    if request.param == "meta":
        return torch.device("meta")
    return second_device(request)


@pytest.fixture(params=["sim", "cuda"])
def accelerator(request: pytest.FixtureRequest) -> torch.device:
    return second_device(request)


@pytest.fixture(params=["cpu", "sim", "cuda"])
def place(request: pytest.FixtureRequest) -> torch.device:
    """Where batches go."""
    return torch.device("cpu") if request.param == "cpu" else second_device(request)


def second_device(request: pytest.FixtureRequest) -> torch.device:
    name = {"sim": "simulated_accelerator", "cuda": "simulated_cuda"}[request.param]
    running: Simulation = request.getfixturevalue(name)
    return running.devices[1]


def sample() -> dict[str, Any]:
    """One of each of torchvision's kinds of tensors."""
    torch.manual_seed(0)
    boxes = [[0.0, 1, 5, 7], [2, 2, 8, 9]]
    return {
        "image": tv_tensors.Image(torch.rand(3, *SIZE)),
        "raw": tv_tensors.Image(torch.randint(256, (3, *SIZE), dtype=torch.uint8)),
        "mask": tv_tensors.Mask(torch.rand(2, *SIZE) > 0.5),
        "video": tv_tensors.Video(torch.rand(2, 3, *SIZE)),
        "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=SIZE),
        "points": tv_tensors.KeyPoints([[3.0, 4]], canvas_size=SIZE),
        "labels": torch.tensor([0, 1]),
    }


KINDS = ["image", "raw", "mask", "video", "boxes", "points"]

# ------------------------------------------------------------------ moving


@pytest.mark.parametrize("kind", KINDS)
def test_moves_with_type_and_attributes(kind: str, target: torch.device) -> None:
    before = sample()[kind]
    moved = to_device(before, target)

    assert_on(target, moved)
    assert_same(moved, before)
    assert vars(moved) == vars(before)
    assert_on("cpu", before)
    assert to_device(moved, target) is moved


def test_every_kind_at_once_and_back(accelerator: torch.device) -> None:
    before = sample()
    moved = to_device(before, accelerator)

    assert_on(accelerator, moved)
    assert_same(to_device(moved, "cpu"), before)
    assert to_device(before, "cpu") is before


def test_box_format_and_canvas_size_are_kept(target: torch.device) -> None:
    moved = to_device(sample(), target)

    assert moved["boxes"].format is tv_tensors.BoundingBoxFormat.XYXY
    assert moved["boxes"].canvas_size == moved["points"].canvas_size == SIZE


def test_dtype_is_for_floating_tensors_only(target: torch.device) -> None:
    before = sample()
    moved = to_device(before, target, dtype=torch.bfloat16)

    changed = {name for name in before if moved[name].dtype != before[name].dtype}
    assert changed == {"image", "video", "boxes", "points"}
    assert {moved[name].dtype for name in changed} == {torch.bfloat16}
    assert {name: type(x) for name, x in moved.items()} == {n: type(x) for n, x in before.items()}
    assert vars(moved["boxes"]) == vars(before["boxes"])


def test_an_image_that_is_there_twice_stays_one(target: torch.device) -> None:
    image = sample()["image"]
    moved = to_device({"clean": image, "noisy": [image]}, target)

    assert moved["clean"] is moved["noisy"][0]


def test_gradients_reach_the_image_that_was_moved(accelerator: torch.device) -> None:
    source = torch.rand(3, 4, 4, requires_grad=True)
    to_device(tv_tensors.Image(source), accelerator).sum().backward()

    assert torch.equal(source.grad, torch.ones(3, 4, 4))


def test_the_return_type_that_torchvision_is_set_to_changes_nothing(target: torch.device) -> None:
    before = sample()
    with tv_tensors.set_return_type("TVTensor"):
        assert_same(to_device(before, target), before)


def test_paths_and_errors_name_them() -> None:
    batch = [(sample()["image"], {"boxes": sample()["boxes"]})]

    assert [path for path, _ in find_tensors(batch)] == ["data[0][0]", "data[0][1]['boxes']"]
    with pytest.raises(NotImplementedError) as caught:
        to_device(to_device(batch, "meta"), "cpu")
    assert caught.value.__notes__ == [
        "while moving data[0][0] (float32[3, 16, 16], 3.1 KB) from meta to cpu"
    ]


def test_float64_becomes_float32_where_the_device_has_none(simulated_accelerator: None) -> None:
    from devicekit.testing import simulate

    boxes = tv_tensors.BoundingBoxes(
        torch.ones(1, 4, dtype=torch.float64), format="CXCYWH", canvas_size=SIZE
    )
    with simulate("sim", float64=False):
        with pytest.warns(UserWarning, match=r"no float64: data\['boxes'\]"):
            moved = to_device({"boxes": boxes}, "sim")["boxes"]
        assert (moved.dtype, type(moved)) == (torch.float32, tv_tensors.BoundingBoxes)
        assert vars(moved) == vars(boxes)
        with pytest.raises(MoveError):
            to_device({"boxes": boxes}, "sim", strict=True)


def test_torchvisions_own_to_on_a_simulated_device(accelerator: torch.device) -> None:
    before = sample()
    for kind in KINDS:
        assert_same(before[kind].to(accelerator), before[kind])
        assert type(before[kind].to(accelerator) + 0) is Tensor  # as on the CPU


# ------------------------------------------------------------------ pinning, packing


def test_pins_every_kind(accelerator: torch.device) -> None:
    before = sample()
    pinned = pin_memory(before)

    assert all(x.is_pinned() for x in pinned.values())
    assert not any(x.is_pinned() for x in before.values())
    assert_same(pinned, before)
    assert pin_memory(pinned) is pinned


def test_packing_leaves_them_as_they_are(accelerator: torch.device) -> None:
    before = sample()
    packed = pack(before)
    moved = unpack(to_device(packed, accelerator))

    assert all(packed.rest[kind] is before[kind] for kind in KINDS)
    assert packed.rest["labels"] is not before["labels"]
    assert_on(accelerator, moved)
    assert_same(moved, before)


# ------------------------------------------------------------------ datasets and the loader


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of generated PNGs: two classes, eight pictures of different sizes."""
    root = tmp_path_factory.mktemp("pictures")
    generator = torch.Generator().manual_seed(0)
    for index in range(8):
        folder = root / ("cat", "dog")[index % 2]
        folder.mkdir(exist_ok=True)
        picture(generator, 20 + index).save(folder / f"{index}.png")
    return root


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated data set in the form of Pascal VOC: pictures, boxes and masks of six images."""
    root = tmp_path_factory.mktemp("voc")
    base = root / "VOCdevkit" / "VOC2012"
    for folder in (
        "Annotations",
        "ImageSets/Main",
        "ImageSets/Segmentation",
        "JPEGImages",
        "SegmentationClass",
    ):
        (base / folder).mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    names = [f"{index:06}" for index in range(6)]
    for kind in ("Main", "Segmentation"):
        (base / "ImageSets" / kind / "train.txt").write_text("\n".join(names) + "\n")
    for index, name in enumerate(names):
        size = 24 + index
        picture(generator, size).save(base / "JPEGImages" / f"{name}.jpg")
        mask = torch.randint(3, (size, size), generator=generator, dtype=torch.uint8)
        Image.fromarray(mask.numpy()).save(base / "SegmentationClass" / f"{name}.png")
        boxes = [(1 + n, 2, 10 + n, 14) for n in range(1 + index % 3)]
        (base / "Annotations" / f"{name}.xml").write_text(annotation(name, size, boxes))
    return root


def picture(generator: torch.Generator, size: int) -> Any:
    values = torch.randint(256, (size, size, 3), generator=generator, dtype=torch.uint8)
    return Image.fromarray(values.numpy())


def annotation(name: str, size: int, boxes: list[tuple[int, ...]]) -> str:
    corners = ("xmin", "ymin", "xmax", "ymax")
    objects = "".join(
        "<object><name>dog</name><bndbox>"
        + "".join(f"<{key}>{value}</{key}>" for key, value in zip(corners, box, strict=True))
        + "</bndbox></object>"
        for box in boxes
    )
    return (
        f"<annotation><filename>{name}.jpg</filename><size><width>{size}</width>"
        f"<height>{size}</height><depth>3</depth></size>{objects}</annotation>"
    )


def augment(*more: nn.Module) -> v2.Compose:
    """Transforms that draw random numbers, in the worker or in the main process."""
    return v2.Compose(
        [
            v2.ToImage(),
            *more,
            v2.RandomResizedCrop(SIZE, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.2] * 3),
        ]
    )


def pairs(batch: list[Any]) -> Any:
    """The collate function of detection: a tuple of images and a tuple of targets."""
    return tuple(zip(*batch, strict=True))


class Mixed:
    """MixUp or CutMix as collate function; a class, so that any start method can send it."""

    def __init__(self, mix: nn.Module) -> None:
        self.mix = mix

    def __call__(self, batch: list[Any]) -> Any:
        return self.mix(*default_collate(batch))


def image_folder(pictures: Path, voc: Path) -> tuple[Dataset[Any], Any]:
    return datasets.ImageFolder(pictures, augment()), None


def fake_data(pictures: Path, voc: Path) -> tuple[Dataset[Any], Any]:
    return datasets.FakeData(8, (3, 20, 20), 4, augment()), None


def mixed_up(pictures: Path, voc: Path) -> tuple[Dataset[Any], Any]:
    return datasets.ImageFolder(pictures, augment()), Mixed(v2.MixUp(num_classes=2))


def cut_and_mixed(pictures: Path, voc: Path) -> tuple[Dataset[Any], Any]:
    return datasets.ImageFolder(pictures, augment()), Mixed(v2.CutMix(num_classes=2))


def detection(pictures: Path, voc: Path) -> tuple[Dataset[Any], Any]:
    transforms = augment(v2.RandomIoUCrop(), v2.SanitizeBoundingBoxes())
    dataset = datasets.VOCDetection(voc, "2012", "train", transforms=transforms)
    keys = ("boxes", "labels")
    return datasets.wrap_dataset_for_transforms_v2(dataset, target_keys=keys), pairs


def segmentation(pictures: Path, voc: Path) -> tuple[Dataset[Any], Any]:
    dataset = datasets.VOCSegmentation(voc, "2012", "train", transforms=augment())
    return datasets.wrap_dataset_for_transforms_v2(dataset), None


DATASETS = [image_folder, fake_data, mixed_up, cut_and_mixed, detection, segmentation]
Make = Callable[[Path, Path], tuple[Dataset[Any], Any]]


def batches(loader: Any) -> list[Any]:
    torch.manual_seed(0)
    random.seed(0)
    return list(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", DATASETS, ids=lambda make: make.__name__)
def test_the_loader_gives_torchs_batches(
    make: Make, workers: int, place: torch.device, pictures: Path, voc: Path
) -> None:
    dataset, collate = make(pictures, voc)
    settings: dict[str, Any] = {"batch_size": 3, "shuffle": True, "collate_fn": collate}
    if workers:  # forked: another process would import torchvision again, which takes seconds
        settings |= {"num_workers": workers, "multiprocessing_context": "fork"}
    expected = batches(torch.utils.data.DataLoader(dataset, **settings))
    ours = batches(DataLoader(dataset, device=place, **settings))

    assert_on(place, ours)
    assert_same(ours, expected)
    prefetched = batches(
        prefetch_to_device(torch.utils.data.DataLoader(dataset, **settings), place)
    )
    assert_on(place, prefetched)
    assert_same(prefetched, expected)


@pytest.mark.parametrize("make", [detection, segmentation], ids=lambda make: make.__name__)
def test_the_targets_of_a_batch_keep_their_types(
    make: Make, accelerator: torch.device, pictures: Path, voc: Path
) -> None:
    dataset, _ = make(pictures, voc)
    (images, targets), *_ = DataLoader(dataset, 2, collate_fn=pairs, device=accelerator)

    assert {type(image) for image in images} == {tv_tensors.Image}
    for found in targets:
        if make is detection:
            assert type(found["boxes"]) is tv_tensors.BoundingBoxes
            assert found["boxes"].canvas_size == SIZE
            assert len(found["boxes"]) == len(found["labels"])
        else:
            assert type(found) is tv_tensors.Mask


class WhereMade(Dataset[Any]):
    """Says in which process a sample was made."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index], os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize("method", [None, "spawn"])
def test_wrapped_datasets_go_to_workers_that_are_not_forked(
    method: str | None, simulated_accelerator: Simulation, pictures: Path, voc: Path
) -> None:
    """None is devicekit's choice where an accelerator was initialised: the fork server."""
    torch.zeros(1, device="sim")
    dataset, _ = detection(pictures, voc)
    loader = DataLoader(
        WhereMade(dataset),
        2,
        collate_fn=pairs,
        num_workers=2,
        multiprocessing_context=method,
        device="sim",
    )
    found = list(loader)

    assert len(found) == 3
    for samples, processes in found:
        assert os.getpid() not in processes
        assert_on("sim", samples)
        assert {type(target["boxes"]) for _, target in samples} == {tv_tensors.BoundingBoxes}


def test_a_dataset_on_the_device_is_loaded_in_the_main_process(
    simulated_accelerator: Simulation, pictures: Path
) -> None:
    to_sim = v2.Lambda(lambda image: image.to("sim"))
    dataset = datasets.ImageFolder(pictures, v2.Compose([augment(), to_sim]))
    loader = DataLoader(dataset, 4, num_workers=1, multiprocessing_context="fork", device="sim")
    with pytest.warns(UserWarning, match=r"`ImageFolder\[0\]\[0\]` is on sim:0"):
        found = list(loader)

    assert_on("sim", found)
    assert len(found) == 2


# ------------------------------------------------------------------ transforms after the move

# Not here: JPEG, which encodes on the CPU or with nvjpeg, which is not simulated; AugMix, which
# draws from the device's random numbers; LinearTransformation, whose matrix stays where it is.
BOXES, IMAGE, BATCH = "boxes", "image", "batch"
AFTER: dict[str, tuple[nn.Module, str]] = {
    "RandomHorizontalFlip": (v2.RandomHorizontalFlip(1.0), BOXES),
    "RandomVerticalFlip": (v2.RandomVerticalFlip(1.0), BOXES),
    "RandomCrop": (v2.RandomCrop(8), BOXES),
    "RandomResizedCrop": (v2.RandomResizedCrop(8, antialias=True), BOXES),
    "Resize": (v2.Resize(9, antialias=True), BOXES),
    "Pad": (v2.Pad(2), BOXES),
    "RandomRotation": (v2.RandomRotation(30), BOXES),
    "RandomAffine": (v2.RandomAffine(20, (0.1, 0.1)), BOXES),
    "RandomPerspective": (v2.RandomPerspective(p=1.0), BOXES),
    "RandomZoomOut": (v2.RandomZoomOut(p=1.0), BOXES),
    "RandomIoUCrop": (v2.RandomIoUCrop(), BOXES),
    "ScaleJitter": (v2.ScaleJitter(SIZE, antialias=True), BOXES),
    "ClampBoundingBoxes": (v2.ClampBoundingBoxes(), BOXES),
    "ConvertBoundingBoxFormat": (v2.ConvertBoundingBoxFormat("CXCYWH"), BOXES),
    "SanitizeBoundingBoxes": (v2.SanitizeBoundingBoxes(), BOXES),
    "ToPureTensor": (v2.ToPureTensor(), BOXES),
    "ToDtype": (v2.ToDtype(torch.float32, scale=True), IMAGE),
    "Normalize": (
        v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)]),
        IMAGE,
    ),
    "ColorJitter": (v2.ColorJitter(0.3, 0.3, 0.3, 0.1), IMAGE),
    "RandomPhotometricDistort": (v2.RandomPhotometricDistort(p=1.0), IMAGE),
    "GaussianBlur": (v2.GaussianBlur(3), IMAGE),
    "RandomErasing": (v2.RandomErasing(1.0), IMAGE),
    "RandomEqualize": (v2.RandomEqualize(1.0), IMAGE),
    "RandomPosterize": (v2.RandomPosterize(4, p=1.0), IMAGE),
    "TrivialAugmentWide": (v2.TrivialAugmentWide(), IMAGE),
    "RandAugment": (v2.RandAugment(), IMAGE),
    "AutoAugment": (v2.AutoAugment(), IMAGE),
    "MixUp": (v2.MixUp(num_classes=2), BATCH),
    "CutMix": (v2.CutMix(num_classes=2), BATCH),
}


def given(kind: str) -> Any:
    whole = sample()
    if kind == IMAGE:
        return {"image": whole["raw"]}
    if kind == BATCH:
        return torch.stack([whole["image"], whole["image"].flip(-1)]), whole["labels"]
    return {name: whole[name] for name in ("image", "mask", "boxes", "points", "labels")}


@pytest.mark.parametrize("name", AFTER)
def test_transforms_of_a_moved_batch(name: str, accelerator: torch.device) -> None:
    transform, kind = AFTER[name]
    expected, found = (seeded(transform, to_device(given(kind), d)) for d in ("cpu", accelerator))

    assert_on(accelerator, found)
    if kind == BATCH or name in ("GaussianBlur", "Normalize", "ColorJitter"):
        for (_, mine), (_, own) in zip(find_tensors(found), find_tensors(expected), strict=True):
            torch.testing.assert_close(mine.cpu(), own)
    else:
        assert_same(found, expected)


def seeded(transform: nn.Module, data: Any) -> Any:
    torch.manual_seed(1)
    random.seed(1)
    return transform(data)


# ------------------------------------------------------------------ operators

OPERATORS: dict[str, Callable[..., Tensor]] = {
    "nms": lambda boxes, scores, image, rois: ops.nms(boxes, scores, 0.5),
    "batched_nms": lambda boxes, scores, image, rois: ops.batched_nms(
        boxes, scores, (scores > 0.5).long(), 0.5
    ),
    "roi_align": lambda boxes, scores, image, rois: ops.roi_align(image, rois, 3),
    "roi_pool": lambda boxes, scores, image, rois: ops.roi_pool(image, rois, 3),
    "ps_roi_align": lambda boxes, scores, image, rois: ops.ps_roi_align(image, rois, 2),
    "deform_conv2d": lambda boxes, scores, image, rois: ops.deform_conv2d(
        image, image.new_full((1, 18, 16, 16), 0.3), image.new_ones(2, 4, 3, 3), padding=1
    ),
    "box_iou": lambda boxes, scores, image, rois: ops.box_iou(boxes, boxes),
    "sigmoid_focal_loss": lambda boxes, scores, image, rois: ops.sigmoid_focal_loss(
        scores, (scores > 0.5).float()
    ),
    "masks_to_boxes": lambda boxes, scores, image, rois: ops.masks_to_boxes(image[0] > 0.5),
}


def detections() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    corner = torch.rand(20, 2) * 10
    boxes = torch.cat([corner, corner + torch.rand(20, 2) * 6], 1)
    rois = torch.cat([torch.zeros(20, 1), boxes], 1)
    return boxes, torch.rand(20), torch.rand(1, 4, *SIZE), rois


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str, accelerator: torch.device) -> None:
    found = OPERATORS[name](*to_device(detections(), accelerator))

    assert_on(accelerator, found)
    torch.testing.assert_close(found.cpu(), OPERATORS[name](*detections()))


def test_an_operator_refuses_two_devices(accelerator: torch.device) -> None:
    boxes, scores, *_ = detections()
    with pytest.raises(RuntimeError, match=f"E{SAME[1:]}"):
        ops.nms(to_device(boxes, accelerator), scores, 0.5)


# ------------------------------------------------------------------ models


def classifier(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    model = models.get_model(name, weights=None, num_classes=4)
    return model, (torch.randn(2, 3, 32, 32), torch.tensor([0, 3]))


def detector(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    model = models.get_model(
        name, weights=None, weights_backbone=None, num_classes=3, min_size=64, max_size=64
    )
    boxes = torch.tensor([[4.0, 4, 30, 30], [10, 8, 40, 44]])
    targets = [
        {"boxes": boxes, "labels": torch.tensor([1, 2])},
        {"boxes": boxes[:1], "labels": torch.tensor([1])},
    ]
    return model, ([torch.rand(3, 48, 64), torch.rand(3, 64, 48)], targets)


MODELS = {
    "resnet18": classifier,
    "mobilenet_v3_small": classifier,
    "fasterrcnn_mobilenet_v3_large_320_fpn": detector,
}


def losses(name: str, device: torch.device | str) -> Iterator[float]:
    """The losses of three steps, with a guard on the model."""
    torch.manual_seed(0)
    model, batch = MODELS[name](name)
    model = guard(to_device(model, device))
    batch = to_device(batch, device)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.Dropout):  # a device draws numbers of its own
            layer.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(0)
    for _ in range(3):
        optimizer.zero_grad()
        if MODELS[name] is detector:
            loss = sum(model(*batch).values())
        else:
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        assert_on(device, [loss, [*model.parameters()]])
        yield loss.item()


@pytest.mark.parametrize("name", MODELS)
def test_models_train_to_the_cpus_losses(name: str, accelerator: torch.device) -> None:
    expected = list(losses(name, "cpu"))

    assert expected[0] != expected[2]
    assert list(losses(name, accelerator)) == pytest.approx(expected, rel=1e-4)


def test_the_guard_names_a_batch_that_was_left_behind(accelerator: torch.device) -> None:
    model, (images, _) = classifier("resnet18")
    guard(to_device(model, accelerator))
    with pytest.raises(DeviceMismatchError) as caught:
        model(tv_tensors.Image(images))

    assert f"ResNet.forward: {SAME}, but found {accelerator} and cpu" in str(caught.value)
    assert re.search(r"cpu +x +float32\[2, 3, 32, 32\]", str(caught.value))


def test_the_guard_names_the_targets_that_were_left_behind(accelerator: torch.device) -> None:
    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    model, (images, targets) = detector(name)
    guard(to_device(model, accelerator))
    with pytest.raises(DeviceMismatchError) as caught:
        model(to_device(images, accelerator), copy.copy(targets))

    for words in ("targets[0]['boxes']", "targets[1]['labels']", "fix: "):
        assert words in str(caught.value)


@pytest.mark.parametrize("name", MODELS)
def test_audit_of_a_moved_model(name: str, accelerator: torch.device) -> None:
    """The anchors of a detector are in a plain list; it moves them itself when it runs."""
    model, (images, _) = MODELS[name](name)
    to_device(model, accelerator)

    left = {problem.path.rpartition(".")[2] for problem in audit(model)}
    anchors = {f"cell_anchors[{level}]" for level in range(3)}
    assert left == (anchors if MODELS[name] is detector else set())
    model.eval()(to_device(images, accelerator))
    assert not audit(model)


# ------------------------------------------------------------------ docs/interop.md


def test_the_section_of_the_page(
    machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_section("torchvision")

    assert next(names["model"].parameters()).device.type == machine
    assert type(names["targets"][0]["boxes"]) is tv_tensors.BoundingBoxes
