"""vLLM's reasoning parsers, in which the closing tag alone ends a thought, as in rollouts.

vLLM's own also end a thought at a call inside of it. The grammar of a forced answer then gets the call's mark, refuses it, and
the request fails. A thought has no white space at its end: templates add it to the thought that a client sends back. The engine
process of vLLM imports this module by its name.
"""

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from vllm.parser.engine.adapters import make_adapters
from vllm.parser.engine.parser_engine import ParserEngine
from vllm.parser.engine.parser_engine_config import ParserEngineConfig, ParserState
from vllm.parser.gemma4 import Gemma4Parser
from vllm.parser.qwen3 import Qwen3Parser
from vllm.parser.seed_oss import SeedOssParser
from vllm.reasoning import ReasoningParserManager

from temper.rollout.formats.turn_format import TurnFormat

PARSERS = {
    "<think>": "closed_qwen3",
    "<|channel>thought": "closed_gemma4",
    "<seed:think>": "closed_seed_oss",
    "<|channel|>analysis<|message|>": "openai_gptoss",
}
"""Names of reasoning parsers, by the opening tag."""


TOKEN_TEXTS: WeakKeyDictionary[Any, dict[int, str]] = WeakKeyDictionary()
"""The texts of single tokens by tokenizer. vLLM decodes each token of each request to count the tokens of thoughts."""

CONFIGS: dict[int, tuple[ParserEngineConfig, ParserEngineConfig]] = {}
"""vLLM's configurations, which it makes once, each with the one for closed thoughts."""


class ClosedThoughts(ParserEngine):
    """Drops the transitions from a thought to a call, and the white space after a thought."""

    def __init__(self, *given: Any, parser_engine_config: ParserEngineConfig, **more: Any) -> None:
        super().__init__(*given, parser_engine_config=_closed_config(parser_engine_config), **more)
        self._engine._scanner._token_text_cache = TOKEN_TEXTS.setdefault(self.model_tokenizer, {})


def _closed_config(config: ParserEngineConfig) -> ParserEngineConfig:
    """Return the configuration of closed thoughts, made once for each of vLLM's, because it compiles marks."""
    known = CONFIGS.get(id(config))
    if known is None:
        kept = {
            (state, mark): to
            for (state, mark), to in config.transitions.items()
            if state != ParserState.REASONING or to.next_state in (ParserState.REASONING, ParserState.CONTENT)
        }
        closed = replace(config, transitions=kept, strip_trailing_reasoning_whitespace=True)
        known = CONFIGS[id(config)] = config, closed
    return known[1]


for _name, _parser in (("qwen3", Qwen3Parser), ("gemma4", Gemma4Parser), ("seed_oss", SeedOssParser)):
    _closed, _ = make_adapters(type(_name, (_parser, ClosedThoughts), {}))
    ReasoningParserManager.register_module(f"closed_{_name}", module=_closed)


def reasoning_parser(form: TurnFormat) -> str:
    """Return the name of the reasoning parser of a family, or ""."""
    return "" if form.tags is None else PARSERS.get(form.tags.opening, "")
