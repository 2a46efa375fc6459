"""Prompts find the turn that they continue."""

import pytest
from support import tiny_models

from temper.rollout.episodes.agent_session import TurnTree
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    return Renderer(load_tokenizer(tiny_models.qwen3(tmp_path_factory.mktemp("tree") / "model")))


@pytest.fixture
def tree(renderer: Renderer) -> TurnTree:
    """A conversation of two turns, and another one."""
    made = TurnTree(renderer)
    for parent, text in ((-1, "ask one"), (0, "ask one, two"), (-1, "else")):
        made.add(parent, renderer.encode(text))
    return made


@pytest.mark.parametrize(
    ("prompt", "parent", "rest"),
    [
        ("ask one, two, three", 1, ", three"),
        ("ask one, more", 0, ", more"),
        ("ask", -1, "ask"),
        ("ask one, two", 0, ", two"),  # a turn itself is sampled again
        ("elsewhere", 2, "where"),
    ],
)
def test_the_longest_turn_is_continued(prompt: str, parent: int, rest: str, tree: TurnTree, renderer: Renderer) -> None:
    ids = renderer.encode(prompt)
    found, context = tree.place(ids)
    assert (found, renderer.decode(context)) == (parent, rest)
    assert tree.ids(found, context) == ids


def test_equal_text_of_other_tokens_is_continued_with_the_sampled_ones(renderer: Renderer) -> None:
    class Merging:
        """A tokenizer that encodes two letters a as one token, which the model did not sample."""

        def decode(self, ids: tuple[int, ...]) -> str:
            return "".join({1: "a", 2: "aa", 3: "b"}[token] for token in ids)

        def encode(self, text: str) -> tuple[int, ...]:
            return tuple({"a": 1, "b": 3}[letter] for letter in text)

    tree = TurnTree(Merging())  # type: ignore[arg-type]
    tree.add(-1, (3, 1, 1))
    found, context = tree.place((3, 2, 3))
    assert (found, context) == (0, (3,))
    assert tree.ids(found, context) == (3, 1, 1, 3)
