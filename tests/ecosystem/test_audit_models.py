"""No false alarm of audit on real models, on the CPU and on the simulated accelerator."""

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from devicekit import audit, guard
from devicekit.testing import Simulation, simulate

pytestmark = pytest.mark.ecosystem

transformers = pytest.importorskip("transformers")
geometric = pytest.importorskip("torch_geometric.nn")

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
TEXT = {**SIZES, "vocab_size": 50}
HEADS = {"num_key_value_heads": 2}
IMAGE = {**SIZES, "image_size": 32, "patch_size": 16}


def made(name: str, **options: object) -> Callable[[], nn.Module]:
    """A model of transformers with random weights."""

    def make() -> nn.Module:
        model = getattr(transformers, name)
        return model(model.config_class(**options))

    return make


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": made("BertForMaskedLM", **TEXT),
    "bloom": made("BloomForCausalLM", hidden_size=16, n_layer=2, n_head=2, vocab_size=50),
    "clip": made("CLIPModel", text_config=TEXT, vision_config=IMAGE),
    "convnext": made("ConvNextModel", hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "deberta": made("DebertaV2Model", **TEXT),
    "distilbert": made("DistilBertModel", dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    "gpt2": made("GPT2LMHeadModel", n_embd=16, n_layer=2, n_head=2, vocab_size=50),
    "gpt_neox": made("GPTNeoXForCausalLM", **TEXT),
    "llama": made("LlamaForCausalLM", **TEXT),
    "mistral": made("MistralForCausalLM", **TEXT, **HEADS),
    "mixtral": made("MixtralForCausalLM", **TEXT, **HEADS, num_local_experts=2),
    "qwen2": made("Qwen2ForCausalLM", **TEXT, **HEADS),
    "roberta": made("RobertaModel", **TEXT),
    "swin": made("SwinModel", image_size=32, patch_size=4, embed_dim=8, depths=[1], num_heads=[1]),
    "t5": made("T5Model", d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=50),
    "vit": made("ViTForImageClassification", **IMAGE),
    "xlnet": made("XLNetModel", vocab_size=50, d_model=16, n_layer=1, n_head=2, d_inner=32),
    "pyg_gat": lambda: geometric.GAT(8, 16, 2, 4),
    "pyg_gcn": lambda: geometric.GCN(8, 16, 2, 4),
    "pyg_gin": lambda: geometric.GIN(8, 16, 2, 4),
    "pyg_lightgcn": lambda: geometric.LightGCN(10, 4, 2),
    "pyg_sage": lambda: geometric.GraphSAGE(8, 16, 2, 4),
    "pyg_schnet": lambda: geometric.SchNet(16, 16, 2),
    "torch_lstm": lambda: nn.LSTM(3, 4, 2),
    "torch_transformer": lambda: nn.Transformer(8, 2, 1, 1, 16),
}


@pytest.fixture(scope="module")
def accelerator() -> Iterator[Simulation]:
    with simulate() as running:
        yield running


@pytest.mark.parametrize("name", MODELS)
def test_no_false_alarm(name: str, accelerator: Simulation) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the models' own makers
        model = MODELS[name]()
    for device in ("cpu", "sim:0"):
        model.to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        report = audit(model, optimizer, device=device)
        assert not report, str(report)
        assert not audit(model), str(report)


def test_metrics_move_themselves(accelerator: Simulation) -> None:
    classification = pytest.importorskip("torchmetrics.classification")
    model = nn.Sequential(nn.Linear(3, 2))
    model.acc = classification.MulticlassAccuracy(2)
    for device in ("cpu", "sim:0"):
        model.to(device)
        assert not audit(model, device=device)
        assert not audit(model)
    model.acc = classification.MulticlassAccuracy(2)
    (finding,) = audit(model)
    assert (finding.path, finding.fix) == ("model.acc", 'model.acc.to("sim:0")')


def test_a_guarded_model_of_transformers_answers(accelerator: Simulation) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = guard(MODELS["llama"]().eval())
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        before = model(input_ids=ids).logits
        model.to("sim")
        after = model(input_ids=ids.to("sim")).logits
    torch.testing.assert_close(after.cpu(), before, rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match=r"LlamaForCausalLM\.forward[\s\S]*input_ids"):
        model(input_ids=ids)
