"""Tokenizers of model families, built from their chat templates: one token for each byte, and the family's special tokens.

The templates come from TRL (`FOLDER`) or from any other text. No model file is needed.
"""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TRL = find_spec("trl")
FOLDER = None if TRL is None or TRL.origin is None else Path(TRL.origin).parent / "chat_templates"
SPECIAL = re.compile(
    r"<\|[^<>\s'\"{}]*\|?>|<[^<>\s'\"{}|]*\|>|<\uff5c[^<>\s]*\uff5c>|<SPECIAL_\d+>|<(?:start|end)_of_turn>|\[/?[A-Z_]+\]|</s>"
)
"""Special tokens of families, if a template writes them in one piece."""
TEXT_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
ENDS = {
    "llama3": "<|eot_id|>",
    "gemma4": "<turn|>",
    "gemma": "<end_of_turn>",
    "gptoss": "<|return|>",
    "glm4moe": "<|endoftext|>",
    "deepseek": "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "phi": "<|end|>",
    "cohere": "<|END_OF_TURN_TOKEN|>",
    "mistral": "</s>",
    "nemotron_nano_v2": "<SPECIAL_12>",
}
"""The eos token by the prefix of the local model name. The default is `<|im_end|>`."""

NEMOTRON_NANO_V2 = """
{%- set ns = namespace(thinks=true) -%}
{%- for m in messages if m.role in ('system', 'user') -%}
  {%- if '/think' in m.content -%}{%- set ns.thinks = true -%}
  {%- elif '/no_think' in m.content -%}{%- set ns.thinks = false -%}{%- endif -%}
{%- endfor -%}
{%- macro bare(text) -%}{{- text.replace('/think', '').replace('/no_think', '').strip() -}}{%- endmacro -%}
{%- set opening = '<SPECIAL_11>Assistant\\n' + ('<think>\\n' if ns.thinks else '<think></think>') -%}
{{- '<SPECIAL_10>System\\n' -}}
{%- if messages[0].role == 'system' -%}{{- bare(messages[0].content) -}}{%- endif -%}
{%- if tools -%}
  {{- '\\n<AVAILABLE_TOOLS>[' -}}
  {%- for tool in tools -%}{{- tool.function | tojson -}}{{- ', ' if not loop.last -}}{%- endfor -%}
  {{- ']</AVAILABLE_TOOLS>\\nCall them by <TOOLCALL>[{"name": ..., "arguments": ...}]</TOOLCALL>' -}}
{%- endif -%}
{{- '\\n' -}}
{%- for m in messages -%}
  {%- if m.role == 'user' -%}
    {{- '<SPECIAL_11>User\\n' + bare(m.content) + '\\n' -}}
  {%- elif m.role == 'tool' -%}
    {{- '<SPECIAL_11>User\\n<TOOL_RESPONSE>[' if messages[loop.index0 - 1].role != 'tool' else ', ' -}}
    {{- m.content -}}
    {{- ']</TOOL_RESPONSE>\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' -}}
  {%- elif m.role == 'assistant' and not loop.last -%}
    {{- '<SPECIAL_11>Assistant\\n' + m.content.split('</think>')[-1].strip() -}}
    {%- if m.tool_calls -%}
      {{- '\\n\\n' if m.content.strip() -}}
      {{- '<TOOLCALL>[' -}}
      {%- for call in m.tool_calls -%}
        {{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' -}}
        {{- ', ' if not loop.last -}}
      {%- endfor -%}
      {{- ']</TOOLCALL>' -}}
    {%- endif -%}
    {{- '\\n<SPECIAL_12>\\n' -}}
  {%- elif m.role == 'assistant' and m.content.strip() -%}
    {{- opening + m.content.strip() + '\\n<SPECIAL_12>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- opening -}}{%- endif -%}
"""
"""Writes the same as the template on the card of Nemotron Nano 9B v2. It has no variable for thinking and leaves thinking out.
Of a last turn it writes the text alone, not the calls."""
MISTRAL = """
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}{{- '[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]' -}}{%- endif -%}
{%- for m in messages -%}
  {%- if m.role == 'user' -%}
    {%- if tools and loop.last -%}{{- '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
    {{- '[INST]' + m.content + '[/INST]' -}}
  {%- elif m.role == 'assistant' and m.tool_calls -%}
    {{- '[TOOL_CALLS] [' -}}
    {%- for call in m.tool_calls -%}
      {%- if call.id is not defined or call.id | length != 9 -%}{{- raise_exception('an id has nine letters') -}}{%- endif -%}
      {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + (', ' if not loop.last else ']') -}}
    {%- endfor -%}
    {{- eos_token -}}
  {%- elif m.role == 'assistant' -%}
    {{- m.content + eos_token -}}
  {%- elif m.role == 'tool' -%}
    {%- if m.tool_call_id is not defined -%}{{- raise_exception('an answer names its call') -}}{%- endif -%}
    {{- '[TOOL_RESULTS] {"content": ' + m.content + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' -}}
  {%- endif -%}
{%- endfor -%}
"""
"""Writes the same as Mistral's templates of the third version: calls have ids, and a list of calls ends with its turn."""
DEEPSEEK_V3_1 = """
{%- set ns = namespace(answered=false) -%}
{{- bos_token -}}
{%- for m in messages if m.role == 'system' -%}{{- m.content -}}{%- endfor -%}
{%- for m in messages -%}
  {%- if m.role == 'user' -%}
    {{- '<\uff5cUser\uff5c>' + m.content -}}
  {%- elif m.role == 'assistant' -%}
    {%- if not ns.answered -%}{{- '<\uff5cAssistant\uff5c></think>' -}}{%- endif -%}
    {{- (m.content or '').split('</think>')[-1] -}}
    {%- if m.tool_calls -%}
      {{- '<\uff5ctool\u2581calls\u2581begin\uff5c>' -}}
      {%- for call in m.tool_calls -%}
        {{- '<\uff5ctool\u2581call\u2581begin\uff5c>' + call.function.name + '<\uff5ctool\u2581sep\uff5c>' -}}
        {{- call.function.arguments + '<\uff5ctool\u2581call\u2581end\uff5c>' -}}
      {%- endfor -%}
      {{- '<\uff5ctool\u2581calls\u2581end\uff5c>' -}}
    {%- endif -%}
    {{- '<\uff5cend\u2581of\u2581sentence\uff5c>' -}}
  {%- elif m.role == 'tool' -%}
    {{- '<\uff5ctool\u2581output\u2581begin\uff5c>' + m.content + '<\uff5ctool\u2581output\u2581end\uff5c>' -}}
  {%- endif -%}
  {%- set ns.answered = m.role == 'tool' -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role == 'user' -%}
  {{- '<\uff5cAssistant\uff5c>' + ('<think>' if thinking else '</think>') -}}
{%- endif -%}
"""
"""Writes the same as DeepSeek V3.1's template. A turn without thinking begins with the closing tag alone. Thinking and tool
schemas are left out. A turn after a tool's answer has no opening."""
WRITTEN_HERE = {"nemotron_nano_v2": NEMOTRON_NANO_V2, "mistral": MISTRAL, "deepseek_v3_1": DEEPSEEK_V3_1}
"""Templates of families that TRL lacks, rewritten for these tests."""


def template_of(name: str) -> str:
    """The chat template of this name, local or from TRL. Skips the test if TRL is not installed."""
    if name in WRITTEN_HERE:
        return WRITTEN_HERE[name]
    if FOLDER is None:
        pytest.skip("TRL, whose chat templates these are, is not installed")
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def tokenizer_of(
    name: str, template: str | None = None, merges: Sequence[tuple[str, str]] = ()
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of the family of this name, with its template or the given one."""
    text = template_of(name) if template is None else template
    eos = next((end for start, end in ENDS.items() if name.startswith(start)), "<|im_end|>")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    symbols = [*alphabet, *dict.fromkeys(map("".join, merges))]
    inner = Tokenizer(models.BPE(vocab={symbol: at for at, symbol in enumerate(symbols)}, merges=[*merges]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    special = sorted({eos, "<s>", *SPECIAL.findall(text)})
    inner.add_special_tokens([AddedToken(token, special=True) for token in special])
    inner.add_tokens([AddedToken(token, special=False) for token in TEXT_TOKENS if token in text])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token=eos, bos_token="<s>", pad_token="<s>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = text
    return tokenizer
