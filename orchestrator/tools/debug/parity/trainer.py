"""The trainer's side: answers scored as the learner scores them, and the hidden states between its layers.

Suffixes: `_T` one entry per sampled token, `_1P` one sequence and token, `_1PD` hidden size too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from temper.learner.batches.micro_batches import make_batch
from temper.learner.batches.pass_experts import PassExperts
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig
from temper.learner.models.expert_replay import ExpertReplay
from temper.learner.models.kernels import training_device
from temper.learner.models.loading import cast, read_model, recompute
from temper.learner.models.logprobs import token_logprobs
from temper.learner.models.noise import train_without_noise
from temper.learner.models.scorer import Scorer
from temper.learner.update import current_logprobs
from temper.orchestrator.tools.debug.parity.answers import ScoredAnswer, Stream
from temper.rollout.engines.runners.layer_recorder import EMBEDDING, after_layer, inside_layer, layers_of
from temper.rollout.token_arrays import as_floats, as_ids, as_marks

At = Callable[[str, torch.Tensor], torch.Tensor | None]
"""What is called with a point and the hidden states (1, P, D) there; returns what goes on in their place, or None."""
FIRST = ("self_attn", "linear_attn", "mamba")
"""What families call the first part of a layer that has two."""


class Trainer:
    """One model of a directory, read when it is needed, in the precision that is needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._model: PreTrainedModel | None = None
        self._replay: ExpertReplay | None = None
        self._bf16 = False
        self._device = torch.device(training_device())

    def model(self, *, bf16: bool) -> PreTrainedModel:
        """Return the model in bfloat16, or in float32; the one in the other precision is no longer of use."""
        if self._model is None or self._bf16 != bf16:
            self.release()
            model = read_model(self._directory)
            recompute(model, "none")
            cast(model, bf16=bf16)
            model.to(self._device)
            train_without_noise(model)  # as in a step, which takes other kernels on a GPU than in evaluation mode
            self._model, self._bf16 = model.requires_grad_(False), bf16
            self._replay = ExpertReplay(model, replay=True, device=self._device)  # where choices were recorded
        return self._model

    def release(self) -> None:
        """Free the model's memory, which an engine needs."""
        self._model = self._replay = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def scores(self, answers: Sequence[ScoredAnswer], learner: LearnerConfig) -> list[NDArray[np.float32]]:
        """Return the log-probabilities of the sampled tokens of each answer, in nats, as a step of the learner has them."""
        model = self.model(bf16=learner.bf16)
        samples = [_sample(answer, place) for place, answer in enumerate(answers)]
        batch = make_batch(
            samples,
            ranks=1,
            micro_batch_tokens=learner.micro_batch_tokens,
            pad_id=0,
            shared_prompts=learner.shared_prompts,
        )
        found: list[NDArray[np.float32]] = [np.zeros(0, dtype=np.float32)] * len(answers)
        with _scorer(model, learner) as scorer:
            for micro_batch in batch.micro_batches[0]:
                self._follow([experts.without_count() for experts in micro_batch.experts])
                scored = current_logprobs(scorer, micro_batch, reference=None, device=self._device).old_BT
                assert scored is not None
                assert micro_batch.places_B is not None
                for place, own, trained in zip(
                    micro_batch.places_B, scored.cpu().numpy(), micro_batch.weights_BT > 0, strict=True
                ):
                    found[place] = own[trained]
        return found

    def run(self, answer: ScoredAnswer, at: At, *, bf16: bool, points: Sequence[str]) -> NDArray[np.float32]:
        """Run the model over prompt and answer and call `at` at each of the points; returns the log-probability of each id
        but the first, in nats at temperature 1.
        """
        model = self.model(bf16=bf16)
        ids_1P = torch.tensor([list(answer.ids)], device=self._device)
        self._follow([PassExperts.uncounted(answer.experts, length=len(answer.ids))])
        with torch.no_grad(), hooked(model, at, points=points):
            logits_1PV = model(input_ids=ids_1P, use_cache=False).logits
            scores: NDArray[np.float32] = token_logprobs(logits_1PV, ids_1P)[0, 1:].cpu().numpy()
        return scores

    def _follow(self, passes: Sequence[PassExperts]) -> None:
        assert self._replay is not None
        self._replay.follow(passes)

    def stream(self, answer: ScoredAnswer, *, bf16: bool, points: Sequence[str]) -> Stream:
        """Return the hidden states at each of the points, of all ids but the last."""
        found: Stream = {}

        def keep(point: str, hidden_1PD: torch.Tensor) -> None:
            found[point] = hidden_1PD[0, :-1].float().cpu().numpy()

        self.run(answer, keep, bf16=bf16, points=points)
        return found


@contextmanager
def _scorer(model: PreTrainedModel, learner: LearnerConfig) -> Iterator[Scorer]:
    """Give a scorer of a model, whose output layer is afterwards as it was."""
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
        temperature=answer.sampling.temperature or 1.0,  # a greedy answer's are those of the model at 1
        place=place,
        experts=answer.experts,
    )


@contextmanager
def hooked(model: PreTrainedModel, at: At, *, points: Sequence[str]) -> Iterator[None]:
    """Call `at` at points of a model of transformers in its forward passes.

    A point inside of a layer is behind its first part, attention or Mamba, whose output and the layer's input make up the
    hidden states there.
    """
    layers = layers_of(model, count=model.config.get_text_config(decoder=True).num_hidden_layers)
    wanted = set(points)
    handles = []
    for number, layer in enumerate(layers):
        point = _Layer(at, number, wanted=wanted)
        handles.append(layer.register_forward_pre_hook(point.before, with_kwargs=True))
        handles.append(layer.register_forward_hook(point.after))
        if inside_layer(number) in wanted:
            handles.append(first_part(layer).register_forward_hook(point.inside))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_part(layer: torch.nn.Module) -> torch.nn.Module:
    """Return the first part of a layer that has two. Raise `ValueError` where it is none of a known name."""
    children = dict(layer.named_children())
    for name in FIRST:
        if name in children:
            return children[name]
    raise ValueError(f"{type(layer).__name__} has no part {', '.join(FIRST)}, but {', '.join(children)}")


class _Layer:
    """The hooks of one layer."""

    def __init__(self, at: At, number: int, *, wanted: set[str]) -> None:
        self._at, self._number, self._wanted = at, number, wanted
        self._input = torch.empty(0)

    def before(self, _layer: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        hidden_1PD = given[0] if given else named["hidden_states"]
        new_1PD = self._at(EMBEDDING, hidden_1PD) if self._number == 0 and EMBEDDING in self._wanted else None
        self._input = hidden_1PD if new_1PD is None else new_1PD
        if given:
            return (self._input, *given[1:]), named
        return given, {**named, "hidden_states": self._input}

    def inside(self, _part: torch.nn.Module, _given: Any, returned: Any) -> Any:
        own = returned[0] if isinstance(returned, tuple) else returned
        new_1PD = self._at(inside_layer(self._number), self._input + own)
        if new_1PD is None:
            return None
        put = new_1PD - self._input
        return (put, *returned[1:]) if isinstance(returned, tuple) else put

    def after(self, _layer: torch.nn.Module, _given: Any, returned: Any) -> Any:
        own = returned[0] if isinstance(returned, tuple) else returned
        new_1PD = self._at(after_layer(self._number), own)
        if new_1PD is None:
            return None
        return (new_1PD, *returned[1:]) if isinstance(returned, tuple) else new_1PD
