"""The trainer side: answers scored as in a training step, and the hidden states between layers.

Suffixes: `_T` sampled token, `_1P` one sequence and token, `_1PD` also hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from temper.learner.batches.micro_batches import build_batch
from temper.learner.batches.pass_experts import PassExperts
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig
from temper.learner.models.experts import ExpertReplay
from temper.learner.models.kernels import training_device
from temper.learner.models.loading import cast, read_model, recompute, train_without_noise
from temper.learner.models.logprobs import token_logprobs
from temper.learner.models.scorer import Scorer
from temper.learner.update import compute_logprobs
from temper.orchestrator.tools.debug.parity.answers import ScoredAnswer, Stream
from temper.rollout.engines.runners.layer_recorder import EMBEDDING, after_layer, inside_layer, layers_of
from temper.rollout.token_arrays import as_floats, as_ids, as_marks

At = Callable[[str, torch.Tensor], torch.Tensor | None]
"""Receives a point and its hidden states (1, P, D). Returns their replacement, or None."""
FIRST = ("self_attn", "linear_attn", "mamba")
"""Names of the first part of a layer that has two."""


class Trainer:
    """A model directory, loaded on demand in the requested precision."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._model: PreTrainedModel | None = None
        self._replay: ExpertReplay | None = None
        self._bf16 = False
        self._device = torch.device(training_device())

    def model(self, *, bf16: bool) -> PreTrainedModel:
        """Return the model in bfloat16 or float32. The model in the other precision becomes invalid."""
        if self._model is None or self._bf16 != bf16:
            self._model = self._replay = None
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            model = read_model(self._directory)
            recompute(model, "none")
            cast(model, bf16=bf16)
            model.to(self._device)
            train_without_noise(model)  # as in a step: evaluation mode uses other GPU kernels
            self._model, self._bf16 = model.requires_grad_(False), bf16
            self._replay = ExpertReplay(model, replay=True, device=self._device)
        return self._model

    def scores(self, answers: Sequence[ScoredAnswer], learner: LearnerConfig) -> list[NDArray[np.float32]]:
        """Return the logprobs of the sampled tokens of each answer, in nats, as in a training step."""
        model = self.model(bf16=learner.bf16)
        batch = build_batch(
            [_sample(answer, place) for place, answer in enumerate(answers)],
            ranks=1,
            micro_batch_tokens=learner.micro_batch_tokens,
            pad_id=0,
            shared_prompts=learner.shared_prompts,
        )
        found: dict[int, NDArray[np.float32]] = {}
        with _scorer(model, learner) as scorer:
            for micro_batch in batch.micro_batches[0]:
                self._follow([experts.without_count() for experts in micro_batch.experts])
                scored = compute_logprobs(scorer, micro_batch, reference=None, device=self._device).old_BT
                assert scored is not None
                assert micro_batch.places_B is not None
                trained_BT = micro_batch.weights_BT > 0
                for place, own, trained in zip(micro_batch.places_B, scored.cpu().numpy(), trained_BT, strict=True):
                    found[int(place)] = own[trained]
        return [found.get(place, np.zeros(0, dtype=np.float32)) for place in range(len(answers))]

    def run(self, answer: ScoredAnswer, at: At, *, bf16: bool, points: Sequence[str]) -> NDArray[np.float32]:
        """Run the model over prompt and answer, and call `at` at the points.

        Return the logprob of each id but the first, in nats at temperature 1.
        """
        model = self.model(bf16=bf16)
        ids_1P = torch.tensor([list(answer.ids)], device=self._device)
        self._follow([PassExperts.from_uncounted(answer.experts, length=len(answer.ids))])
        with torch.no_grad(), hook_points(model, at, points=points):
            logits_1PV = model(input_ids=ids_1P, use_cache=False).logits
            scores: NDArray[np.float32] = token_logprobs(logits_1PV, ids_1P)[0, 1:].cpu().numpy()
        return scores

    def stream(self, answer: ScoredAnswer, *, bf16: bool, points: Sequence[str]) -> Stream:
        """Return the hidden states at each point, for all ids but the last."""
        found: Stream = {}

        def keep(point: str, hidden_1PD: torch.Tensor) -> None:
            found[point] = hidden_1PD[0, :-1].float().cpu().numpy()

        self.run(answer, keep, bf16=bf16, points=points)
        return found

    def _follow(self, passes: Sequence[PassExperts]) -> None:
        assert self._replay is not None
        self._replay.queue_passes(passes)


@contextmanager
def _scorer(model: PreTrainedModel, learner: LearnerConfig) -> Iterator[Scorer]:
    """Yield a scorer of a model, and restore its output layer afterwards."""
    layer = model.get_output_embeddings()
    try:
        yield Scorer(model, model, tokens=learner.logit_tokens, float32_head=learner.float32_head)
    finally:
        if layer is not None:
            vars(layer).pop("forward", None)


def _sample(answer: ScoredAnswer, place: int) -> TrainingSample:
    count, prompt = len(answer.ids), len(answer.prompt_ids)
    return TrainingSample(
        ids=as_ids(answer.ids),
        trained_T=as_marks([False] * prompt + [True] * (count - prompt)),
        advantages_T=as_floats([0.0] * count),
        behaviour_T=as_floats([0.0] * count),
        group=answer.group,
        temperature=answer.sampling.temperature or 1.0,  # greedy answers use temperature 1
        place=place,
        experts=answer.experts,
    )


def model_layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """Return the layers of a model of transformers in their order."""
    return layers_of(model, count=model.config.get_text_config(decoder=True).num_hidden_layers)


def first_part(layer: torch.nn.Module) -> torch.nn.Module:
    """Return the first part of a layer that has two, attention or Mamba. Raise `ValueError` if no part has a known name."""
    children = dict(layer.named_children())
    for name in FIRST:
        if name in children:
            return children[name]
    raise ValueError(f"{type(layer).__name__} has none of the parts {', '.join(FIRST)}, only {', '.join(children)}")


@contextmanager
def hook_points(model: PreTrainedModel, at: At, *, points: Sequence[str]) -> Iterator[None]:
    """Call `at` at points of a model of transformers in its forward passes.

    At a point inside a layer, the hidden states are the layer's input plus the output of its first part.
    """
    handles = []
    for number, layer in enumerate(model_layers(model)):
        hooks = _Layer(at, number, replaces_input=number == 0 and EMBEDDING in points)
        handles.append(layer.register_forward_pre_hook(hooks.before, with_kwargs=True))
        if after_layer(number) in points:
            handles.append(layer.register_forward_hook(hooks.after))
        if inside_layer(number) in points:
            handles.append(first_part(layer).register_forward_hook(hooks.inside))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Layer:
    """The hooks of one layer."""

    def __init__(self, at: At, number: int, *, replaces_input: bool) -> None:
        self._at, self._number, self._replaces_input = at, number, replaces_input
        self._input = torch.empty(0)

    def before(self, _layer: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self._input = given[0] if given else named["hidden_states"]
        new_1PD = self._at(EMBEDDING, self._input) if self._replaces_input else None
        if new_1PD is None:
            return None
        self._input = new_1PD
        return ((new_1PD, *given[1:]), named) if given else (given, {**named, "hidden_states": new_1PD})

    def inside(self, _part: torch.nn.Module, _given: Any, returned: Any) -> Any:
        new_1PD = self._at(inside_layer(self._number), self._input + _hidden(returned))
        return None if new_1PD is None else _with_hidden(returned, new_1PD - self._input)

    def after(self, _layer: torch.nn.Module, _given: Any, returned: Any) -> Any:
        new_1PD = self._at(after_layer(self._number), _hidden(returned))
        return None if new_1PD is None else _with_hidden(returned, new_1PD)


def _hidden(returned: Any) -> torch.Tensor:
    """Return the hidden states among the outputs of a module."""
    found: torch.Tensor = returned[0] if isinstance(returned, tuple) else returned
    return found


def _with_hidden(returned: Any, hidden_1PD: torch.Tensor) -> Any:
    return (hidden_1PD, *returned[1:]) if isinstance(returned, tuple) else hidden_1PD
