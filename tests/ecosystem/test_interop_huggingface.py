"""What docs/interop.md says of accelerate and of transformers' Trainer."""

import re
import subprocess
import sys

import pytest
import torch
from interop_page import assert_said, run_section

from devicekit import DataLoader, Device, DeviceMismatchError, guard, to_device

accelerate = pytest.importorskip("accelerate", reason="docs/interop.md shows accelerate")
transformers = pytest.importorskip("transformers", reason="docs/interop.md shows transformers")

pytestmark = [
    pytest.mark.ecosystem,
    pytest.mark.usefixtures("accelerate_chooses_anew"),
    pytest.mark.filterwarnings("ignore:Was asked to gather along dimension 0"),  # DataParallel
]


def test_accelerate_takes_the_cpu_for_a_name_it_does_not_know(simulated_accelerator):
    assert accelerate.Accelerator().device == torch.device("cpu")


def test_accelerate_takes_the_device_of_the_environment(simulated_accelerator, monkeypatch):
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "sim:1")
    names = run_section("accelerate")

    assert names["loss"].device == names["x"].device == torch.device("sim:1")


def test_a_guard_stays_through_prepare(simulated_cuda):
    names = run_section("accelerate")
    with pytest.raises(DeviceMismatchError) as caught:
        names["model"](torch.rand(2, 8))

    assert re.search(r"cuda:0\s+self\s+Net: 2 parameters", str(caught.value))
    assert re.search(r"cpu\s+x\s+float32\[2, 8\]", str(caught.value))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_guard_stays_through_prepare_with_mixed_precision(simulated_cuda, precision):
    names = run_section("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(mixed_precision=precision)
    model = accelerator.prepare(names["Net"]())

    assert model(torch.rand(2, 8, device="cuda:0")).device == torch.device("cuda:0")
    with pytest.raises(DeviceMismatchError, match=r"Net\.forward"):
        model(torch.rand(2, 8))


def test_prepare_makes_a_loader_of_torchs_class_from_the_parts(simulated_cuda):
    accelerator = accelerate.Accelerator()
    data = [(torch.tensor([float(i)]), i) for i in range(6)]
    loader = DataLoader(data, batch_size=2, device=accelerator.device)
    prepared = accelerator.prepare(loader)

    assert type(prepared.base_dataloader) is torch.utils.data.DataLoader
    assert prepared.base_dataloader.pin_memory
    pairs = zip(loader, prepared, strict=True)
    for (x, i), (same_x, same_i) in pairs:
        assert x.device == same_x.device == i.device == same_i.device == torch.device("cuda:0")
        assert torch.equal(x, same_x)


@pytest.mark.parametrize(
    ("prepare", "synchronised"), [(True, [False, True, True]), (False, [False, True, False])]
)
def test_only_a_prepared_loader_ends_an_accumulation(prepare, synchronised):
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    loader = DataLoader(torch.rand(3, 1), device="cpu")
    seen = []
    for _ in accelerator.prepare(loader) if prepare else loader:
        with accelerator.accumulate(model):
            seen.append(accelerator.sync_gradients)
    assert seen == synchronised


SHARES = """
import torch
from accelerate import Accelerator
from transformers import Trainer, TrainingArguments
from devicekit import DataLoader

accelerator = Accelerator(cpu=True)
loader = DataLoader(list(range(12)), batch_size=3, device=accelerator.device)
seen = torch.cat(list(loader))
everything = accelerator.gather(seen)
assert len(seen) == 6 and sorted(everything.tolist()) == list(range(12)), (seen, everything)
prepared = torch.cat(list(accelerator.prepare(loader)))
everything = accelerator.gather_for_metrics(prepared)
assert len(prepared) == 6 and sorted(everything.tolist()) == list(range(12))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, x, labels=None):
        self.seen += x.flatten().tolist()
        return {"loss": self.layer(x).sum()}

class DeviceTrainer(Trainer):
    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, 3, shuffle=True, device=self.args.device)

model = Model()
samples = [{"x": torch.tensor([float(i)])} for i in range(12)]
arguments = TrainingArguments(
    output_dir="unused", num_train_epochs=1, use_cpu=True, disable_tqdm=True,
    save_strategy="no", report_to=[], remove_unused_columns=False,
)
DeviceTrainer(model=model, args=arguments, train_dataset=samples).train()
everything = accelerator.gather(torch.tensor(model.seen))
assert len(model.seen) == 6 and sorted(everything.tolist()) == list(range(12)), everything
print(f"rank {accelerator.process_index} is right")
accelerator.end_training()
"""


@pytest.mark.slow
def test_two_processes_share_the_data_with_and_without_prepare(tmp_path):
    (tmp_path / "shares.py").write_text(SHARES)
    launched = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "shares.py"]
    result = subprocess.run(launched, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    assert result.returncode == 0, result.stderr
    assert sorted(re.findall(r"rank \d is right", result.stdout)) == [
        "rank 0 is right",
        "rank 1 is right",
    ]


# ------------------------------------------------- transformers


@pytest.fixture
def trained(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda: run_section("transformers' Trainer")


def test_trainer_on_two_simulated_gpus_uses_data_parallel(trained, simulated_cuda):
    names = trained()

    assert names["arguments"].n_gpu == 2
    assert isinstance(names["trainer"].model_wrapped, torch.nn.DataParallel)
    assert names["trainer"].state.global_step == 2


def test_trainer_takes_the_device_of_accelerate(trained, simulated_accelerator, monkeypatch):
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "sim:1")
    names = trained()

    assert Device.of(names["model"]) == "sim:1"
    assert names["encoding"]["input_ids"].device == torch.device("sim:1")
    assert isinstance(names["encoding"], transformers.BatchEncoding)
    assert names["output"].logits.device == torch.device("cpu")
    with pytest.raises(ValueError, match="bf16") as caught:
        transformers.TrainingArguments(output_dir="unused", bf16=True, report_to=[])
    assert_said(str(caught.value).partition(".")[0])


def test_a_guarded_model_of_transformers_names_its_arguments(trained, simulated_cuda):
    model = trained()["model"]
    with pytest.raises(DeviceMismatchError) as caught:
        model(input_ids=torch.zeros(1, 6, dtype=torch.long))

    assert re.search(r"cpu\s+input_ids\s+int64\[1, 6\]", str(caught.value))


def test_a_guarded_model_of_transformers_saves_and_loads(trained, tmp_path):
    names = trained()
    model, config = names["model"], names["config"]
    plain = transformers.BertForSequenceClassification(config)
    assert list(model.state_dict()) == list(plain.state_dict())

    model.save_pretrained(tmp_path / "model")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "model")
    ids = torch.zeros(1, 6, dtype=torch.long)
    model.eval()
    torch.testing.assert_close(again.eval()(ids).logits, model(ids).logits)
    assert type(guard.remove(model)) is transformers.BertForSequenceClassification


@pytest.fixture
def gpt2():
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2,
        bos_token_id=0, eos_token_id=1, pad_token_id=2, tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def test_a_guarded_model_generates(gpt2, simulated_cuda):
    model = to_device(gpt2.eval(), "cuda:0")
    tokens = torch.tensor([[3, 4, 5]], device="cuda:0")
    settings = {"max_new_tokens": 4, "do_sample": False, "attention_mask": tokens > 0}
    expected = model.generate(tokens, **settings)

    guarded = guard(model).generate(tokens, **settings)
    assert guarded.device == torch.device("cuda:0")
    assert torch.equal(guarded, expected)


def guarded_before(model, device_map):
    return accelerate.dispatch_model(guard(model), device_map)


def guarded_after(model, device_map):
    return guard(accelerate.dispatch_model(model, device_map))


@pytest.mark.parametrize("dispatch", [guarded_before, guarded_after])
def test_a_guarded_model_on_two_devices(dispatch, gpt2, simulated_cuda):
    model = dispatch(gpt2, {"transformer": 0, "lm_head": 1})
    tokens = torch.tensor([[3, 4, 5]])
    assert model(tokens).logits.device.type == "cpu"  # accelerate brings it back
    assert model(tokens.cuda()).logits.device == torch.device("cuda:0")

    model.transformer.wpe.to("cuda:1")
    with pytest.raises(DeviceMismatchError) as caught:
        model(tokens)
    assert re.search(r"cuda:1\s+self\.wpe\s+Embedding", str(caught.value))
    assert re.search(r"cuda:0\s+position_ids", str(caught.value))
