"""Function-calling benchmarks: the Berkeley Function-Calling Leaderboard, version 4, single-turn and multi-turn."""

from temper.envs.data.config import DataConfig
from temper.envs.presets.preset import Preset

FOLDER = "gorilla/berkeley-function-call-leaderboard/bfcl_eval/data"
"""The folder of its files next to a clone of github.com/ShishirPatil/gorilla."""
SAME_CALLS = "the calls are the accepted ones, in any order: names, types and values by the leaderboard's rules"
SOURCE = (
    "Patil et al., The Berkeley Function Calling Leaderboard, ICML 2025; data and rules of github.com/ShishirPatil/gorilla at "
    "6ea5797 (to be cloned; the hub has version 3), Apache-2.0"
)
LITERALS = f"{SAME_CALLS}; arguments are texts with literals of the language"
NO_CALL, ANY_CALL = "no call that can be read", "at least one call that can be read"
ROWS = {
    "simple_python": (400, SAME_CALLS),
    "simple_java": (100, LITERALS),
    "simple_javascript": (50, LITERALS),
    "multiple": (200, SAME_CALLS),
    "parallel": (200, SAME_CALLS),
    "parallel_multiple": (200, SAME_CALLS),
    "irrelevance": (240, NO_CALL),
    "live_simple": (258, SAME_CALLS),
    "live_multiple": (1053, SAME_CALLS),
    "live_parallel": (16, SAME_CALLS),
    "live_parallel_multiple": (24, SAME_CALLS),
    "live_irrelevance": (884, NO_CALL),
    "live_relevance": (16, ANY_CALL),
}
"""The number of rows of each category, and its rule for a right answer."""


def _preset(category: str, rows: int, rule: str) -> Preset:
    return Preset(
        name=f"bfcl_{category}",
        title=f"BFCL v4, {category}",
        env="tool_use",
        data=DataConfig(path=f"{FOLDER}/BFCL_v4_{category}.json", format="bfcl_v4"),
        rows=rows,
        prompt="the dialogue and the functions of the row, as the leaderboard gives them to models that call functions",
        rule=rule,
        tokens=2048,
        samples="1, temperature 0.001",
        source=SOURCE,
        differs="functions are put by the model's chat template, calls read by its own format; "
        "calls pair up in the best way, not by the first that fits; an accepted object whose text is no list has that text",
    )


BFCL = tuple(_preset(category, rows, rule) for category, (rows, rule) in ROWS.items())


def _of_turns(category: str) -> Preset:
    return Preset(
        name=f"bfcl_multi_turn_{category}",
        title=f"BFCL v4, multi_turn_{category}",
        env="multi_turn_calls",
        data=DataConfig(path=f"{FOLDER}/BFCL_v4_multi_turn_{category}.json", format="bfcl_v4_multi_turn"),
        rows=200,
        prompt="the user turns and the functions of the row, as in the leaderboard's prompts with native calls",
        rule="after each user turn with reference calls the simulators have the state that these leave, and the model's calls "
        "returned all of their results",
        tokens=2048,
        samples="1, temperature 0.001",
        source=f"{SOURCE}; the simulators come from the clone, or from options.simulators, and run sealed",
        differs="the model's chat template shows the functions and its format gives the calls; functions that a later turn "
        "offers are in the user's text, as in the leaderboard's prompts without native calls; the first wrong turn ends the "
        "dialogue, since it is then wrong anyway",
    )


BFCL_TURNS = tuple(_of_turns(category) for category in ("base", "miss_func", "miss_param", "long_context"))
