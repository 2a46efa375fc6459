"""The space of texts: any unicode up to a length."""

from typing import Any

from gymnasium import spaces

MAX_CHARACTERS = 65_536


class AnyText(spaces.Text):
    """Texts of any unicode characters; samples are drawn from letters and digits and stay short."""

    def __init__(self, max_length: int = MAX_CHARACTERS) -> None:
        super().__init__(max_length, min_length=0)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is not None or probability is not None:
            return super().sample(mask, probability)
        length = int(self.np_random.integers(0, 257))
        return "".join(self.np_random.choice(list(self.character_list), size=length).tolist())
