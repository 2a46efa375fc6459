"""What stands for engines and ranks where the driver alone is measured: recorded answers played at a rate, shares read."""

import random
from collections.abc import Sequence
from pathlib import Path

from temper.envs.core.pulse import Heart, Pulse
from temper.learner.batches.micro_batches import BatchShare
from temper.learner.losses.config import LossConfig
from temper.rollout.budget.rule import ThoughtTags
from temper.rollout.engines.protocol import Completion
from temper.rollout.engines.replay_engine import ReplayEngine, read_recording
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.worker import RolloutConfig, RolloutWorker
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.transports.shared_memory import SharedMemory
from temper.rollout.weights.transports.transport import Audience

TOKENS_PER_S = 3000
"""Of an engine."""
SEQUENCES = 64
"""Answers that an engine samples at once."""
LENGTHS = (200, 400, 600, 800, 1200, 1800)
"""Tokens of the answers: 833 in the mean."""
ANSWERS = 64


class ReplayWorker(RolloutWorker):
    """A rollout worker whose engine plays answers: each takes as long as in an engine that samples many at once."""

    def __init__(self, config: RolloutConfig, answers: Sequence[Completion], *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self._answers = answers
        self._plays = False

    async def start(
        self, model_dir: str, version: int, record_experts: bool = False, sleeps: bool = False
    ) -> WeightVersion:
        """Attach the engine, with the model's tokenizer; once where several workers of a pool are this one."""
        if not self._plays:
            tokenizer = load_tokenizer(Path(model_dir))
            engine = ReplayEngine({}, others=self._answers, token_s=SEQUENCES / TOKENS_PER_S)
            self.attach(engine, Renderer(tokenizer, self._config.thought), ThoughtTags.find(tokenizer))
            self._plays = True
        return WeightVersion(step=version)


def made_up_answers(model_dir: Path, *, seed: int) -> list[Completion]:
    """Return answers of letters with a thought, in the ids of a model's tokenizer."""
    tokenizer, draw = load_tokenizer(model_dir), random.Random(seed)
    words = tokenizer("abcdefgh ", add_special_tokens=False)["input_ids"]
    end = [*tokenizer("</think>42", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    answers = [_answer(words, end, length, draw) for _ in range(ANSWERS) for length in LENGTHS]
    draw.shuffle(answers)
    return answers


def recorded_answers(paths: Sequence[Path]) -> list[Completion]:
    """Return the turns of all answers in files of trajectories."""
    recordings = [read_recording(path) for path in paths]
    return [answer for recording in recordings for answers in recording.values() for answer in answers]


def _answer(words: Sequence[int], end: Sequence[int], length: int, draw: random.Random) -> Completion:
    return Completion(
        token_ids=(*draw.choices(words, k=length - len(end)), *end),
        logprobs_T=tuple(-draw.random() for _ in range(length)),
        versions_T=(0,) * length,
        finished=True,
    )


class IdleRank:
    """A rank of the learner that reads its share of a batch and learns nothing; its pushes are empty."""

    def __init__(self) -> None:
        self._heart = Heart()

    def train(self, shares: Sequence[BatchShare], *, loss: LossConfig, epochs: int) -> dict[str, float]:
        """Read every number of the share; return how many tokens it has, padding included."""
        read = [float(one.ids_BT.sum() + one.weights_BT.sum()) for share in shares for one in share.micro_batches]
        padded = sum(one.ids_BT.size for share in shares for one in share.micro_batches)
        return {"skipped": 0.0, "loss": sum(read), "padded_tokens": float(padded)}

    def publish(self, version: int) -> WeightManifest:
        """Return the manifest of a push without a tensor."""
        return WeightManifest(
            transport=SharedMemory.name,
            version=version,
            names=(),
            dtypes=(),
            shapes=(),
            offsets=(),
            nbytes=1,
            checksum="",
        )

    def offer(self, version: int, *, whole: bool, audience: Audience) -> None:
        """Offer nothing."""

    def send(self, version: int) -> None:
        """Send nothing."""

    def pulse(self) -> Pulse:
        """Return the signs of life."""
        return self._heart.pulse()

    def close(self) -> None:
        """End with nothing to free."""
