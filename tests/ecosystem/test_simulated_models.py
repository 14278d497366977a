"""Real models, randomly initialised, trained three steps: the same losses as on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from devicekit.testing import Simulation

pytestmark = pytest.mark.ecosystem

Model = tuple[nn.Module, dict[str, Any]]
"""A model, and its arguments; it returns its loss as `.loss`, first item, or output."""


def tokens(*size: int, vocabulary: int = 64) -> Tensor:
    return torch.randint(3, vocabulary, size)


# ------------------------------------------------------------------ transformers

TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}


def bert(t: Any) -> Model:
    config = t.BertConfig(intermediate_size=64, **TEXT)
    x = tokens(2, 9)
    return t.BertForMaskedLM(config), {"input_ids": x, "labels": x}


def gpt2(t: Any) -> Model:
    x = tokens(2, 9)
    config = t.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )
    return t.GPT2LMHeadModel(config), {"input_ids": x, "labels": x}


def llama(t: Any) -> Model:
    x = tokens(2, 9)
    config = t.LlamaConfig(intermediate_size=64, num_key_value_heads=2, **TEXT)
    return t.LlamaForCausalLM(config), {"input_ids": x, "labels": x}


def mixtral(t: Any) -> Model:
    x = tokens(2, 9)
    config = t.MixtralConfig(
        intermediate_size=64, num_key_value_heads=2, num_local_experts=4, **TEXT
    )
    return t.MixtralForCausalLM(config), {"input_ids": x, "labels": x}


def t5(t: Any) -> Model:
    config = t.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return t.T5ForConditionalGeneration(config), {"input_ids": tokens(2, 9), "labels": tokens(2, 5)}


def vit(t: Any) -> Model:
    config = t.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        image_size=16, patch_size=8, num_labels=3,
    )  # fmt: skip
    inputs = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 2])}
    return t.ViTForImageClassification(config), inputs


def convnext(t: Any) -> Model:
    config = t.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, num_labels=3)
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 2])}
    return t.ConvNextForImageClassification(config), inputs


def clip(t: Any) -> Model:
    text = {**TEXT, "intermediate_size": 64, "max_position_embeddings": 16, "eos_token_id": 2}
    image = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 16,
        "patch_size": 8,
    }
    config = t.CLIPConfig(text_config=text, vision_config=image, projection_dim=16)
    inputs = {"input_ids": tokens(2, 9), "pixel_values": torch.randn(2, 3, 16, 16)}
    return t.CLIPModel(config), {**inputs, "return_loss": True}


def wav2vec2(t: Any) -> Model:
    config = t.Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        vocab_size=32, conv_dim=[16, 16], conv_stride=[5, 2], conv_kernel=[10, 3],
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, mask_time_prob=0.0,
    )  # fmt: skip
    inputs = {"input_values": torch.randn(2, 800), "labels": tokens(2, 4, vocabulary=32)}
    return t.Wav2Vec2ForCTC(config), inputs


def whisper(t: Any) -> Model:
    config = t.WhisperConfig(
        vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8,
        max_source_positions=20, max_target_positions=16, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return (
        t.WhisperForConditionalGeneration(config),
        {"input_features": torch.randn(2, 8, 40), "labels": tokens(2, 5)},
    )


TRANSFORMERS = [bert, gpt2, llama, mixtral, t5, vit, convnext, clip, wav2vec2, whisper]


@pytest.mark.parametrize("make", TRANSFORMERS, ids=lambda make: make.__name__)
def test_transformers(make: Callable[[Any], Model], simulated_accelerator: Simulation) -> None:
    t = pytest.importorskip("transformers")
    compare(lambda: make(t))


# ------------------------------------------------------------------ torch_geometric, torch.nn


class Graph(nn.Module):
    def __init__(self, convolution: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = convolution(8, 16), convolution(16, 4)

    def forward(self, x: Tensor, edge_index: Tensor, labels: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu()
        return nn.functional.cross_entropy(self.second(x, edge_index), labels)


@pytest.mark.parametrize("name", ["GCNConv", "GATConv"])
def test_torch_geometric(name: str, simulated_accelerator: Simulation) -> None:
    layers = pytest.importorskip("torch_geometric.nn")
    edges = torch.randint(12, (2, 40))
    inputs = {"x": torch.randn(12, 8), "edge_index": edges, "labels": torch.randint(4, (12,))}
    compare(lambda: (Graph(getattr(layers, name)), inputs))


class Translate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(16, 2, 1, 1, 32, batch_first=True, dropout=0.0)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return (self.body(source, target) - 1).square().mean()


class Recur(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(8, 16, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)[0].square().mean()


def test_nn_transformer(simulated_accelerator: Simulation) -> None:
    inputs = {"source": torch.randn(2, 5, 16), "target": torch.randn(2, 4, 16)}
    compare(lambda: (Translate(), inputs))


def test_nn_lstm(simulated_accelerator: Simulation) -> None:
    compare(lambda: (Recur(), {"x": torch.randn(3, 6, 8)}))


# ------------------------------------------------------------------ the comparison


def compare(make: Callable[[], Model]) -> None:
    """Check three losses on the device against the CPU's."""
    expected = losses(make, "cpu")
    assert expected[0] != expected[2]
    assert losses(make, "sim") == pytest.approx(expected, rel=1e-4)


def losses(make: Callable[[], Model], device: str) -> list[float]:
    torch.manual_seed(0)
    model, inputs = make()
    model.to(device).eval()  # no dropout: a device has random numbers of its own
    there = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        output = model(**there)
        loss = output if isinstance(output, Tensor) else output.loss
        loss.backward()
        optimizer.step()
        found.append(loss.item())
        assert loss.device.type == device
    return found
