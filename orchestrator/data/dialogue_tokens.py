"""Dialogues as token ids, as the engine would see them."""

from transformers import PreTrainedTokenizerBase

from envs.core.task import Message
from envs.core.turn_text import CLOSE_THOUGHT
from orchestrator.data.dialogues import Dialogue
from rollout.budget.config import ThoughtConfig
from rollout.budget.rule import ThoughtLimit, ThoughtTags
from rollout.episodes.renderer import PARTS, Renderer


class DialogueWriter:
    """Writes dialogues as ids, as the engine would see them, thoughts cut where the rollouts would cut them."""

    def __init__(
        self, renderer: Renderer, tags: ThoughtTags | None, thought: ThoughtConfig, *, train_closing: bool = False
    ) -> None:
        self._renderer = renderer
        self._tags = tags
        self._thought = thought
        self._train_closing = train_closing

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, thought: ThoughtConfig, *, train_closing: bool = False
    ) -> "DialogueWriter":
        """The writer for a model's tokenizer."""
        tags = ThoughtTags.find(tokenizer, closing=thought.closing)
        return cls(Renderer(tokenizer, thought), tags, thought, train_closing=train_closing)

    @property
    def knows_thoughts(self) -> bool:
        """Whether the model knows the tags of a thought; else they are plain text."""
        return self._tags is not None

    def dropped(self, dialogue: Dialogue) -> list[str]:
        """What the chat template would leave out of a dialogue in silence."""
        messages = [*dialogue.task.messages, *dialogue.reply]
        parts = {message["role"] for message in messages} & PARTS.keys()
        parts |= {"tool_calls"} if any(message.get("tool_calls") for message in messages) else set()
        parts |= {"tools"} if dialogue.task.tools else set()
        return sorted(part for part in parts if self._renderer.drops(part))

    def breaks_tags(self, dialogue: Dialogue) -> bool:
        """Whether a dialogue contains tags of the chat template, which are broken wherever they are written."""
        return self._renderer.breaks_tags([*dialogue.task.messages, *dialogue.reply])

    def thought_tokens(self, message: Message) -> int:
        """How long the thought of a message is."""
        return len(self._renderer.encode(message["reasoning_content"]))

    def ids(self, dialogue: Dialogue) -> tuple[list[int], list[bool]]:
        """Ids of a dialogue and which are trained: the assistant's own tokens, never the opening of its turn."""
        thinks = dialogue.task.thinks
        ids = list(self._renderer.prompt_ids(dialogue.task))
        trained = [False] * len(ids)
        between: list[Message] = []
        left = dialogue.task.thinking.budget
        for number, message in enumerate(dialogue.reply):
            if message["role"] != "assistant":
                between.append(message)
                continue
            if number:
                opening = self._renderer.observation_ids(between, thinks=thinks)
                ids += opening
                trained += [False] * len(opening)
                between = []
            said, own, thought = self._answer(message, thinks=thinks, budget=left)
            ids += said
            trained += own
            if left is not None and self._thought.scope == "episode":
                left = max(0, left - thought)
        return ids, trained

    def _answer(self, message: Message, *, thinks: bool, budget: int | None) -> tuple[tuple[int, ...], list[bool], int]:
        """Ids of one turn, which are trained, and the length of its thought; cut to the budget."""
        text = self._renderer.answer_text(message, thinks=thinks)
        if budget is None or self._tags is None or CLOSE_THOUGHT not in text:
            ids = self._renderer.encode(text)
            return ids, [True] * len(ids), 0
        thought_text, found, answer_text = text.partition(self._tags.closing)
        if not found:  # the configuration closes thoughts otherwise than the chat template
            thought_text, _, answer_text = text.partition(CLOSE_THOUGHT)
            thought_text, answer_text = thought_text.rstrip("\n"), answer_text.lstrip("\n")
        thought, answer = self._renderer.encode(thought_text), self._renderer.encode(answer_text)
        forcing = self._tags.forcing(thought, ThoughtLimit(tokens=budget, grace=self._thought.grace))
        if forcing is None:
            ids = self._renderer.encode(text)
            return ids, [True] * len(ids), len(thought)
        kept = thought[: forcing.start]
        trained = [True] * len(kept) + [self._train_closing] * len(forcing.ids) + [True] * len(answer)
        return (*kept, *forcing.ids, *answer), trained, len(kept)
