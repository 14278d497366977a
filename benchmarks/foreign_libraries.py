"""Runs a part of the public API of small libraries on the CPU and on the simulated accelerator.

pip install einops pytorch-metric-learning torchmetrics x-transformers
python benchmarks/foreign_libraries.py

Each case moves a module and its inputs to the device, as its users would, once fresh and once after
use on the CPU, and must give the values it gives on the CPU. What fails only on the device is filed
with the statement and the remedy.
"""

import copy
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from common import write
from torch import Tensor, nn

from devicekit import explain, to_device
from devicekit.testing import simulate
from devicekit.tree import find_tensors

LIBRARIES = ("torchmetrics", "pytorch-metric-learning", "x-transformers", "einops")

RANDOM = (
    "DistanceWeightedMiner",
    "NonAutoregressiveWrapper",
    "BeliefStateWrapper",
    "GPTVAE",
    "FreeTransformer",
)
"""Cases that draw from the CPU's generator and the device's, which are one on the CPU."""

Case = tuple[str, Callable[[], nn.Module], tuple[Any, ...]]
"""Name, what makes the module, and the inputs; both are on the CPU."""


def words(text: str) -> list[str]:
    """The names of classes, of which several are on a line."""
    return text.split()


def einops_cases() -> Iterator[Case]:
    """The layers of einops."""
    from einops.layers.torch import EinMix, Rearrange, Reduce

    x = torch.rand(2, 3, 4, 4)
    yield "Rearrange", lambda: Rearrange("b c (h p) w -> b (c p) h w", p=2), (x,)
    yield "Reduce", lambda: Reduce("b c h w -> b c", "mean"), (x,)
    yield (
        "EinMix",
        lambda: EinMix("b c h w -> b o h w", "c o", bias_shape="o", c=3, o=5),
        (x,),
    )


def torchmetrics_cases() -> Iterator[Case]:
    """Metrics of every group that needs no other package."""
    import torchmetrics as tm
    from torchmetrics import (
        aggregation,
        audio,
        classification,
        clustering,
        image,
        nominal,
        regression,
        retrieval,
        text,
        wrappers,
    )

    scores, truth = torch.rand(40), torch.randint(2, (40,))
    logits, labels = torch.randn(40, 4), torch.randint(4, (40,))
    many, some = torch.rand(40, 4), torch.randint(2, (40, 4))
    for name in words(
        "BinaryAccuracy BinaryAUROC BinaryAveragePrecision "
        "BinaryCalibrationError BinaryCohenKappa "
        "BinaryConfusionMatrix BinaryEER BinaryF1Score BinaryHammingDistance BinaryHingeLoss "
        "BinaryJaccardIndex BinaryLogAUC BinaryMatthewsCorrCoef BinaryPrecision "
        "BinaryPrecisionRecallCurve BinaryROC BinarySpecificity BinaryStatScores"
    ):
        yield name, getattr(classification, name), (scores, truth)
    yield (
        "BinaryAUROC(thresholds=10)",
        lambda: classification.BinaryAUROC(thresholds=10),
        (
            scores,
            truth,
        ),
    )
    yield (
        "BinaryRecallAtFixedPrecision",
        lambda: classification.BinaryRecallAtFixedPrecision(0.5),
        (
            scores,
            truth,
        ),
    )
    yield (
        "BinaryFairness",
        lambda: classification.BinaryFairness(2),
        (
            scores,
            truth,
            torch.randint(2, (40,)),
        ),
    )
    for name in words(
        "MulticlassAccuracy MulticlassAUROC "
        "MulticlassAveragePrecision MulticlassCalibrationError "
        "MulticlassCohenKappa MulticlassConfusionMatrix MulticlassExactMatch MulticlassF1Score "
        "MulticlassHingeLoss MulticlassJaccardIndex "
        "MulticlassMatthewsCorrCoef MulticlassPrecision "
        "MulticlassPrecisionRecallCurve MulticlassROC "
        "MulticlassSpecificity MulticlassStatScores"
    ):
        inputs = (logits.softmax(-1), labels)
        if name == "MulticlassExactMatch":
            inputs = (torch.randint(4, (40, 3)), torch.randint(4, (40, 3)))
        yield name, lambda name=name: getattr(classification, name)(num_classes=4), inputs
    for name in words(
        "MultilabelAccuracy MultilabelAUROC "
        "MultilabelAveragePrecision MultilabelConfusionMatrix "
        "MultilabelCoverageError MultilabelExactMatch "
        "MultilabelF1Score MultilabelHammingDistance "
        "MultilabelJaccardIndex MultilabelPrecisionRecallCurve "
        "MultilabelRankingAveragePrecision "
        "MultilabelRankingLoss MultilabelROC MultilabelStatScores"
    ):
        yield name, lambda name=name: getattr(classification, name)(num_labels=4), (many, some)

    x, y = torch.rand(40), torch.rand(40)
    for name in words(
        "ConcordanceCorrCoef CriticalSuccessIndex ExplainedVariance "
        "KendallRankCorrCoef LogCoshError "
        "MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogError "
        "NormalizedRootMeanSquaredError PearsonCorrCoef R2Score "
        "RelativeSquaredError SpearmanCorrCoef "
        "SymmetricMeanAbsolutePercentageError TweedieDevianceScore "
        "WeightedMeanAbsolutePercentageError"
    ):
        arguments = (0.5,) if name == "CriticalSuccessIndex" else ()
        yield name, lambda name=name, a=arguments: getattr(regression, name)(*a), (x, y)
    for name in ("CosineSimilarity", "KLDivergence", "JensenShannonDivergence"):
        if hasattr(regression, name):
            yield name, getattr(regression, name), (many.softmax(-1), torch.rand(40, 4).softmax(-1))
    yield "MinkowskiDistance", lambda: regression.MinkowskiDistance(3), (x, y)

    index = torch.arange(40) // 8
    for name in words(
        "RetrievalAUROC RetrievalFallOut RetrievalHitRate RetrievalMAP RetrievalMRR "
        "RetrievalNormalizedDCG RetrievalPrecision "
        "RetrievalPrecisionRecallCurve RetrievalRPrecision "
        "RetrievalRecall RetrievalRecallAtFixedPrecision"
    ):
        yield name, getattr(retrieval, name), (scores, truth, index)

    groups, others = torch.randint(4, (40,)), torch.randint(4, (40,))
    for name in words(
        "AdjustedMutualInfoScore AdjustedRandScore ClusterAccuracy CompletenessScore "
        "FowlkesMallowsIndex HomogeneityScore MutualInfoScore "
        "NormalizedMutualInfoScore RandScore "
        "VMeasureScore"
    ):
        if name != "ClusterAccuracy":  # it needs another package
            yield name, getattr(clustering, name), (groups, others)
    for name in ("CalinskiHarabaszScore", "DaviesBouldinScore", "DunnIndex"):
        yield name, getattr(clustering, name), (many, groups)
    for name in ("CramersV", "PearsonsContingencyCoefficient", "TheilsU", "TschuprowsT"):
        yield name, lambda name=name: getattr(nominal, name)(num_classes=4), (groups, others)
    yield "FleissKappa", lambda: nominal.FleissKappa("probs"), (torch.rand(10, 4, 5),)

    picture, other = torch.rand(2, 3, 48, 48), torch.rand(2, 3, 48, 48)
    for name in words(
        "ErrorRelativeGlobalDimensionlessSynthesis PeakSignalNoiseRatio "
        "RelativeAverageSpectralError RootMeanSquaredErrorUsingSlidingWindow "
        "SpatialCorrelationCoefficient SpectralAngleMapper SpectralDistortionIndex "
        "StructuralSimilarityIndexMeasure UniversalImageQualityIndex VisualInformationFidelity"
    ):
        options = {"data_range": 1.0} if name.startswith(("Peak", "Struct")) else {}
        yield name, lambda name=name, o=options: getattr(image, name)(**o), (picture, other)
    yield "TotalVariation", image.TotalVariation, (picture,)

    sound, clean = torch.randn(2, 400), torch.randn(2, 400)
    for name in words(
        "ScaleInvariantSignalDistortionRatio "
        "ScaleInvariantSignalNoiseRatio SignalDistortionRatio "
        "SignalNoiseRatio"
    ):
        yield name, getattr(audio, name), (sound, clean)
    ratio = tm.functional.audio.scale_invariant_signal_noise_ratio
    yield (
        "PermutationInvariantTraining",
        lambda: audio.PermutationInvariantTraining(ratio, eval_func="max"),
        (torch.randn(2, 2, 100), torch.randn(2, 2, 100)),
    )
    sounds = torch.randn(2, 2, 100), torch.randn(2, 2, 100)
    yield (
        "SourceAggregatedSignalDistortionRatio",
        audio.SourceAggregatedSignalDistortionRatio,
        sounds,
    )

    yield "Perplexity", text.Perplexity, (torch.rand(2, 8, 5), torch.randint(5, (2, 8)))
    for name in words(
        "BLEUScore CHRFScore CharErrorRate EditDistance MatchErrorRate TranslationEditRate "
        "WordErrorRate WordInfoLost"
    ):
        said, meant = ["the cat sat"], ["a cat sat down"]
        if name in ("BLEUScore", "CHRFScore", "TranslationEditRate"):
            meant = [meant]
        yield name, getattr(text, name), (said, meant)

    for name in ("CatMetric", "MaxMetric", "MeanMetric", "MinMetric", "RunningMean", "SumMetric"):
        yield name, getattr(aggregation, name), (x,)
    accuracy = classification.MulticlassAccuracy
    yield (
        "MetricCollection",
        lambda: tm.MetricCollection([accuracy(4), tm.CohenKappa("multiclass", num_classes=4)]),
        (logits, labels),
    )
    yield (
        "ClasswiseWrapper",
        lambda: wrappers.ClasswiseWrapper(accuracy(4, average=None)),
        (logits, labels),
    )
    yield "MinMaxMetric", lambda: wrappers.MinMaxMetric(accuracy(4)), (logits, labels)
    yield (
        "MultioutputWrapper",
        lambda: wrappers.MultioutputWrapper(tm.R2Score(), 4),
        (many, torch.rand(40, 4)),
    )
    yield "Running", lambda: wrappers.Running(tm.MeanSquaredError(), 2), (x, y)
    yield "CompositionalMetric", lambda: tm.MeanSquaredError() + torch.tensor(1.0), (x, y)


def metric_learning_cases() -> Iterator[Case]:
    """Losses, miners, and what they are made of."""
    from pytorch_metric_learning import distances, losses, miners, reducers, regularizers

    embeddings, labels = torch.randn(32, 8), torch.randint(4, (32,))
    inputs = (embeddings, labels)
    for name in words(
        "AngularLoss CircleLoss ContrastiveLoss DynamicSoftMarginLoss FastAPLoss "
        "GeneralizedLiftedStructureLoss HistogramLoss "
        "IntraPairVarianceLoss LiftedStructureLoss "
        "MarginLoss MultiSimilarityLoss NCALoss NPairsLoss NTXentLoss PNPLoss RankedListLoss "
        "SignalToNoiseRatioContrastiveLoss SmoothAPLoss SupConLoss "
        "ThresholdConsistentMarginLoss "
        "TripletMarginLoss TupletMarginLoss"
    ):
        options: dict[str, Any] = {"Tn": 1, "margin": 0.5} if name == "RankedListLoss" else {}
        chosen = inputs
        if name == "SmoothAPLoss":  # it wants as many of each class
            chosen = (embeddings, torch.arange(32) // 8)
        yield name, lambda name=name, o=options: getattr(losses, name)(**o), chosen
    yield "DynamicSoftMarginLoss", losses.DynamicSoftMarginLoss, (embeddings, torch.arange(32) // 2)
    for name in words(
        "ArcFaceLoss CosFaceLoss LargeMarginSoftmaxLoss NormalizedSoftmaxLoss "
        "ProxyAnchorLoss ProxyNCALoss SoftTripleLoss SphereFaceLoss SubCenterArcFaceLoss"
    ):
        yield (
            f"{name}",
            lambda name=name: getattr(losses, name)(num_classes=4, embedding_size=8),
            inputs,
        )
    yield "ManifoldLoss", lambda: losses.ManifoldLoss(l=8, K=4), (embeddings,)
    yield "P2SGradLoss", lambda: losses.P2SGradLoss(8, 4), inputs
    yield "InstanceLoss", losses.InstanceLoss, inputs
    yield "VICRegLoss", losses.VICRegLoss, (embeddings, None, None, None, torch.randn(32, 8))
    yield (
        "CrossBatchMemory",
        lambda: losses.CrossBatchMemory(losses.NTXentLoss(), 8, memory_size=64),
        inputs,
    )
    yield (
        "SelfSupervisedLoss",
        lambda: losses.SelfSupervisedLoss(losses.NTXentLoss()),
        (embeddings, torch.randn(32, 8)),
    )
    for name in words(
        "AngularMiner BatchEasyHardMiner BatchHardMiner DistanceWeightedMiner "
        "EmbeddingsAlreadyPackagedAsTriplets MultiSimilarityMiner "
        "PairMarginMiner TripletMarginMiner "
        "UniformHistogramMiner"
    ):
        chosen = inputs
        if name == "EmbeddingsAlreadyPackagedAsTriplets":
            chosen = (torch.randn(30, 8), torch.arange(30) % 3)
        options = {}
        if name == "UniformHistogramMiner":
            options = {"num_bins": 10, "pos_per_bin": 5, "neg_per_bin": 5}
        yield name, lambda name=name, o=options: getattr(miners, name)(**o), chosen
    for name in words(
        "BatchedDistance CosineSimilarity DotProductSimilarity LpDistance SNRDistance"
    ):
        if name == "BatchedDistance":
            found = lambda: distances.BatchedDistance(  # noqa: E731
                distances.LpDistance(), lambda mat, s, e: None, batch_size=8
            )
        else:
            found = getattr(distances, name)
        yield name, found, (embeddings, torch.randn(16, 8))
    for name in words(
        "AvgNonZeroReducer ClassWeightedReducer DoNothingReducer MeanReducer "
        "SumReducer ThresholdReducer"
    ):
        options = {}
        if name == "ClassWeightedReducer":
            options = {"weights": torch.rand(4)}
        if name == "ThresholdReducer":
            options = {"low": 0.1}
        yield (
            f"TripletMarginLoss(reducer={name})",
            lambda name=name, o=options: losses.TripletMarginLoss(
                reducer=getattr(reducers, name)(**o)
            ),
            inputs,
        )
    yield (
        "ContrastiveLoss(reducer=PerAnchorReducer)",
        lambda: losses.ContrastiveLoss(reducer=reducers.PerAnchorReducer()),
        inputs,
    )
    for name in words(
        "CenterInvariantRegularizer LpRegularizer RegularFaceRegularizer "
        "SparseCentersRegularizer ZeroMeanRegularizer"
    ):
        options = {}
        if name == "SparseCentersRegularizer":
            options = {"num_classes": 2, "centers_per_class": 2}
        role = "weight" if name.startswith(("Center", "Regular", "Sparse")) else "embedding"

        def regularized(
            name: str = name, o: dict[str, Any] = options, role: str = role
        ) -> nn.Module:
            regularizer = getattr(regularizers, name)(**o)
            return losses.NormalizedSoftmaxLoss(4, 8, **{f"{role}_regularizer": regularizer})

        yield f"NormalizedSoftmaxLoss({name})", regularized, inputs


def x_transformers_cases() -> Iterator[Case]:
    """Transformers with the options that make tensors of their own: positions, masks, memories."""
    from x_transformers import (
        AutoregressiveWrapper,
        ContinuousTransformerWrapper,
        Decoder,
        Encoder,
        TransformerWrapper,
        ViTransformerWrapper,
        XTransformer,
    )

    ids = torch.randint(64, (2, 16))
    size = {"dim": 32, "depth": 2, "heads": 2, "attn_dim_head": 16}

    def language_model(wrapper: dict[str, Any] | None = None, **options: Any) -> nn.Module:
        return TransformerWrapper(
            num_tokens=64, max_seq_len=16, attn_layers=Decoder(**size, **options), **(wrapper or {})
        )

    for options in (
        {},
        {"rotary_pos_emb": True},
        {"rotary_pos_emb": True, "rotary_xpos": True},
        {"alibi_pos_bias": True},
        {"rel_pos_bias": True},
        {"dynamic_pos_bias": True},
        {"dynamic_pos_bias": True, "dynamic_pos_bias_log_distance": True},
        {"attn_flash": True},
        {"attn_flash": True, "alibi_pos_bias": True},
        {"attn_pre_talking_heads": True},
        {"attn_num_mem_kv": 4},
        {"attn_one_kv_head": True},
        {"attn_sparse_topk": 4},
        {"attn_qk_norm": True},
        {"attn_gate_values": True},
        {"attn_data_dependent_alibi": True},
        {"attn_use_cope": True, "attn_cope_max_pos": 16},
        {"shift_tokens": 1},
        {"use_rmsnorm": True, "ff_glu": True, "ff_swish": True},
        {"use_scalenorm": True},
        {"use_simple_rmsnorm": True},
        {"sandwich_norm": True},
        {"macaron": True},
        {"residual_attn": True},
        {"gate_residual": True},
        {"attn_head_scale": True},
        {"attn_laser": True},
        {"attn_selective": True},
        {"num_residual_streams": 2},
    ):
        name = ", ".join(f"{key}={value}" for key, value in options.items())
        yield f"Decoder({name})", lambda o=options: language_model(**o), (ids,)
    for wrapper in (
        {"num_memory_tokens": 4},
        {"use_abs_pos_emb": False},
        {"scaled_sinu_pos_emb": True},
        {"emb_frac_gradient": 0.1},
        {"l2norm_embed": True},
        {"tie_embedding": True},
        {"post_emb_norm": True},
        {"memory_tokens_interspersed_every": 4, "num_memory_tokens": 2},
    ):
        name = ", ".join(f"{key}={value}" for key, value in wrapper.items())
        yield f"TransformerWrapper({name})", lambda w=wrapper: language_model(w), (ids,)

    class Generate(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.wrapper = AutoregressiveWrapper(net)

        def forward(self, prompt: Tensor) -> Tensor:
            return self.wrapper.generate(prompt, 4, temperature=0.0)

    yield "AutoregressiveWrapper", lambda: AutoregressiveWrapper(language_model()), (ids,)
    yield (
        "AutoregressiveWrapper(mask_prob)",
        lambda: AutoregressiveWrapper(language_model(), mask_prob=0.15),
        (ids,),
    )
    yield "AutoregressiveWrapper.generate", lambda: Generate(language_model()), (ids[:, :4],)
    yield (
        "generate(rotary_pos_emb)",
        lambda: Generate(language_model(rotary_pos_emb=True)),
        (ids[:, :4],),
    )
    yield (
        "generate(alibi_pos_bias)",
        lambda: Generate(language_model(alibi_pos_bias=True)),
        (ids[:, :4],),
    )
    yield (
        "ViTransformerWrapper",
        lambda: ViTransformerWrapper(
            image_size=16, patch_size=8, num_classes=5, attn_layers=Encoder(**size)
        ),
        (torch.rand(2, 3, 16, 16),),
    )
    yield (
        "ContinuousTransformerWrapper",
        lambda: ContinuousTransformerWrapper(
            dim_in=4, dim_out=4, max_seq_len=16, attn_layers=Encoder(**size)
        ),
        (torch.rand(2, 16, 4),),
    )
    import x_transformers as xt
    from x_transformers.free_transformer import FreeTransformer
    from x_transformers.gpt_vae import GPTVAE

    encoder = TransformerWrapper(num_tokens=65, max_seq_len=16, attn_layers=Encoder(**size))
    yield (
        "NonAutoregressiveWrapper",
        lambda: xt.NonAutoregressiveWrapper(copy.deepcopy(encoder), mask_id=64, steps=2),
        (ids,),
    )
    yield "BeliefStateWrapper", lambda: xt.BeliefStateWrapper(language_model()), (ids,)

    class Prefer(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.wrapper = xt.DPO(net)

        def forward(self, good: Tensor, bad: Tensor, prompt: Tensor) -> Tensor:
            return self.wrapper(good, bad, prompt_mask=prompt)

    yield (
        "DPO",
        lambda: Prefer(language_model()),
        (ids, ids.flip(1), (torch.arange(16) < 4).expand(2, 16)),
    )
    yield (
        "XLAutoregressiveWrapper",
        lambda: xt.XLAutoregressiveWrapper(language_model({"max_mem_len": 16}, rel_pos_bias=True)),
        (torch.randint(64, (2, 40)),),
    )
    yield "EntropyBasedTokenizer", lambda: xt.EntropyBasedTokenizer(language_model(), 4.0), (ids,)
    yield (
        "NeoMLP",
        lambda: xt.NeoMLP(dim_in=4, dim_hidden=3, dim_out=2, dim_model=16, depth=1),
        (torch.rand(3, 4),),
    )
    yield (
        "MultiInputTransformerWrapper",
        lambda: xt.MultiInputTransformerWrapper(
            num_tokens={"note": 64, "pitch": 64}, max_seq_len=16, attn_layers=Decoder(**size)
        ),
        ({"note": ids, "pitch": ids},),
    )
    yield (
        "ContinuousAutoregressiveWrapper",
        lambda: xt.ContinuousAutoregressiveWrapper(
            ContinuousTransformerWrapper(
                dim_in=4, dim_out=4, max_seq_len=16, attn_layers=Decoder(**size)
            )
        ),
        (torch.rand(2, 16, 4),),
    )
    yield (
        "XValAutoregressiveWrapper",
        lambda: xt.XValAutoregressiveWrapper(
            xt.XValTransformerWrapper(
                num_tokens=64, numerical_token_id=3, max_seq_len=16, attn_layers=Decoder(**size)
            )
        ),
        (ids, torch.rand(2, 16)),
    )
    small = {"num_tokens": 64, "dim": 32, "max_seq_len": 16, "attn_dim_head": 16, "heads": 2}
    yield "GPTVAE", lambda: GPTVAE(depth=2, enc_depth=1, **small), (ids,)
    yield (
        "FreeTransformer",
        lambda: FreeTransformer(dec_head_depth=1, dec_tail_depth=1, latent_bits=4, **small),
        (ids,),
    )
    yield (
        "XTransformer",
        lambda: XTransformer(
            dim=32,
            enc_num_tokens=64,
            enc_depth=1,
            enc_heads=2,
            enc_max_seq_len=16,
            dec_num_tokens=64,
            dec_depth=1,
            dec_heads=2,
            dec_max_seq_len=16,
        ),
        (ids, ids),
    )


CASES = {
    "torchmetrics": torchmetrics_cases,
    "pytorch-metric-learning": metric_learning_cases,
    "x-transformers": x_transformers_cases,
    "einops": einops_cases,
}


def run(
    make: Callable[[], nn.Module], inputs: tuple[Any, ...], device: str, used: bool
) -> list[Tensor]:
    """Runs a case on a device, with a backward pass if there is one; the results on the CPU.

    Args:
        make: Makes the module on the CPU.
        inputs: Its inputs, on the CPU.
        device: Where both are moved.
        used: Whether the module runs on the CPU before it is moved.
    """
    torch.manual_seed(0)
    module = make()
    trains = not hasattr(module, "compute")  # metrics are not for training
    if used:
        module(*inputs)
    module = module.to(device)
    torch.manual_seed(0)
    inputs = to_device(inputs, device)
    if trains and isinstance(inputs[0], Tensor) and inputs[0].is_floating_point():
        inputs = (inputs[0].detach().requires_grad_(), *inputs[1:])
    out = module(*inputs)
    found = [tensor for _, tensor in find_tensors(out)]
    if trains and found and found[0].requires_grad:
        found[0].sum().backward()
        found += [p.grad for p in module.parameters() if p.grad is not None]
    if not trains:
        found += [tensor for _, tensor in find_tensors(module.compute())]
    return [tensor.detach() for tensor in to_device(found, "cpu")]


def judge(
    name: str, make: Callable[[], nn.Module], inputs: tuple[Any, ...], used: bool
) -> dict[str, str]:
    """Compares a case on the simulated accelerator with the same on the CPU."""
    try:
        expected = run(make, inputs, "cpu", used)
    except Exception as error:  # a mistake of this script, or of the library: filed as it is
        return {"outcome": "fails on the CPU", "error": _text(error)}
    with simulate("sim"):
        try:
            try:
                # Not the current device, so that a type without an index is wrong as well.
                found = run(make, inputs, "sim:1", used)
            except NotImplementedError as error:  # sparse tensors are simulated on the first alone
                if "on other devices than 0" not in str(error):
                    raise
                found = run(make, inputs, "sim:0", used)
        except NotImplementedError as error:
            return {"outcome": "not simulated", "error": _text(error), "where": _where(error)}
        except Exception as error:  # what is looked for; explained while the frames are there
            cause = error.__cause__ or error  # the library may have put its own words around it
            report = explain(cause)
            return {
                "outcome": "fails only on the device",
                "error": _text(cause),
                "where": _where(cause),
                "explanation": re.sub(r"/[^ ]*/site-packages/", "", report or ""),
            }
    if name in RANDOM:
        return {"outcome": "same up to random numbers"}
    same = len(found) == len(expected) and all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
        for a, b in zip(found, expected, strict=True)
    )
    return {"outcome": "same"} if same else {"outcome": "other values"}


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _where(error: BaseException) -> str:
    """The last statement outside torch, as file:line and its text."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages/torch/" not in frame.filename and "/devicekit/" not in frame.filename
    ]
    last = frames[-1]
    name = "/".join(Path(last.filename).parts[-3:])
    return f"{name}:{last.lineno}: {last.line}"


def main() -> None:
    """Runs all cases, prints what is not the same, and files everything."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for library in sys.argv[1:] or LIBRARIES:
        results = found[library] = {}
        torch.manual_seed(0)
        for name, make, inputs in CASES[library]():
            for used, when in ((False, "made, moved"), (True, "made, used, moved")):
                result = results[f"{name}: {when}"] = judge(name, make, inputs, used)
                if not result["outcome"].startswith("same"):
                    print(library, name, when, json.dumps(result, indent=1), flush=True)
    counts: dict[str, dict[str, int]] = {}
    for library, results in found.items():
        outcomes = [result["outcome"] for result in results.values()]
        counts[library] = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
        print(library, counts[library])
    if sys.argv[1:]:
        return
    others = {
        library: {name: r for name, r in results.items() if not r["outcome"].startswith("same")}
        for library, results in found.items()
    }
    same = {
        library: [name for name in results if name not in others[library]]
        for library, results in found.items()
    }
    write("foreign_libraries", {"counts": counts, "found": others, "same": same}, *LIBRARIES)


if __name__ == "__main__":
    main()
