"""`eval MODEL` on vLLM: its greedy answers and scores equal the results of a plain vLLM script, token by token."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_models

from temper.envs.mathematics.rows import REQUEST
from temper.orchestrator.__main__ import main
from temper.rollout.engines.vllm_settings import engine_arguments, limit_cpu, prepare_environment
from temper.rollout.tokenizer import load_tokenizer

GSM8K = Path(__file__).resolve().parents[5] / "shared" / "data" / "gsm8k_labelled.jsonl"
TOKENS, END, LONGEST = 24, "87", 200
"""The token limit of an answer, its stop string, and the character limit of a GSM8K question."""
OWN = [f"Ann has {n} pens and buys {n + 1} more. How many?" for n in range(6)]
OWN.append(OWN[0])  # a duplicate row gets two answers


@dataclass(frozen=True, kw_only=True)
class Said:
    """An answer of the plain script: its token ids and its number, None if the answer is truncated."""

    ids: tuple[int, ...]
    number: int | None


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The answers of the script and of an evaluation of the same model, per question."""

    said: list[Said]
    references: list[int]
    result: dict[str, Any]
    played: list[dict[str, Any]]


def that_says_numbers(model: Path) -> Path:
    file = model / "model.safetensors"
    weights = load_file(file)
    for name, values in weights.items():
        if "mixer" in name and values.ndim == 2:
            weights[name] = 4 * values  # makes the last position depend on the question
    digits = load_tokenizer(model).convert_tokens_to_ids(list("0123456789"))
    head = torch.zeros_like(weights["lm_head.weight"])
    head[digits] = torch.randn(len(digits), head.shape[1], generator=torch.Generator().manual_seed(2))
    save_file(weights | {"lm_head.weight": head}, file, metadata={"format": "pt"})
    return model


def plain_script(model: Path, questions: list[str]) -> list[Said]:
    """A minimal script: chat template, vLLM's own class, temperature 0."""
    prepare_environment()
    limit_cpu(threads=1, memory_gib=1)
    from vllm import LLM, SamplingParams

    tokenizer = load_tokenizer(model)
    prompts = []
    for question in questions:
        messages = [{"role": "user", "content": question + REQUEST}]
        text = str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
        )
        prompts.append({"prompt_token_ids": tokenizer(text, add_special_tokens=False)["input_ids"]})
    llm = LLM(model=str(model), dtype="float32", max_model_len=512, **engine_arguments())
    params = SamplingParams(temperature=0, max_tokens=TOKENS, stop=[END])
    answers = [answer.outputs[0] for answer in llm.generate(prompts, params, use_tqdm=False)]
    return [
        Said(ids=tuple(one.token_ids), number=int(one.text) if one.finish_reason == "stop" and one.text else None)
        for one in answers
    ]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """Run both, each with its own engine. The reference of every second question is the model's answer."""
    folder = tmp_path_factory.mktemp("evaluated")
    model = that_says_numbers(tiny_models.nemotron_h(folder / "model"))
    asked = [*OWN, *of_gsm8k()]
    said = plain_script(model, asked)
    references = [(one.number or 0) + place % 2 for place, one in enumerate(said)]
    rows = folder / "rows.jsonl"
    lines = (
        json.dumps({"question": question, "answer": f"so\n#### {reference}"}) + "\n"
        for question, reference in zip(asked, references, strict=True)
    )
    rows.write_text("".join(lines), encoding="utf-8")
    command = ["eval", str(model), "--env", "math", "--data", str(rows), "--greedy", "--max-tokens", str(TOKENS)]
    command += ["--stop", END, "envs.math.thinking=false", "--runs-dir", str(folder / "runs"), "--name", "it"]
    assert main(command) == 0
    run = folder / "runs" / "it"
    result = json.loads((run / "eval" / "model-model.json").read_text(encoding="utf-8"))
    (file,) = (run / "trajectories").glob("*.jsonl")
    played = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return Evaluated(said=said, references=references, result=result, played=played)


def of_gsm8k() -> list[str]:
    """Return short GSM8K questions, or none if the file is missing."""
    if not GSM8K.exists():
        return []
    rows = [json.loads(line)["question"] for line in GSM8K.read_text(encoding="utf-8").splitlines()]
    return list(dict.fromkeys(row for row in rows if len(row) < LONGEST))[:24]


def agree(found: Evaluated, places: slice) -> None:
    said = found.said[places]
    assert [tuple(one["turns"][0]["sampled_ids"]) for one in found.played[places]] == [one.ids for one in said]
    expected = [int(one.number == reference) for one, reference in zip(said, found.references[places], strict=True)]
    assert [task["right"] for task in found.result["tasks"]["math"][places]] == expected
    assert set(expected) == {0, 1}


@pytest.mark.slow
def test_greedy_answers_to_a_file_and_their_scores_are_those_of_a_plain_vllm_script(evaluated: Evaluated) -> None:
    agree(evaluated, slice(0, len(OWN)))
    asked = [one["messages"][0]["content"].removesuffix(REQUEST) for one in evaluated.played[: len(OWN)]]
    assert asked == OWN
    result, rows = evaluated.result, len(evaluated.said)
    assert (result["k"], result["sampling"]["temperature"], result["envs"]["math"]["samples"]) == (1, 0.0, rows)
    assert len({task["key"] for task in result["tasks"]["math"]}) == rows


@pytest.mark.slow
def test_so_are_those_to_questions_of_gsm8k(evaluated: Evaluated) -> None:
    if not GSM8K.exists():
        pytest.skip(f"no {GSM8K}")
    agree(evaluated, slice(len(OWN), None))
    assert len({one.ids for one in evaluated.said[len(OWN) :]}) > 4
    found = evaluated.result["envs"]["math"]["avg_at_k"]
    right = sum(one.number == reference for one, reference in zip(evaluated.said, evaluated.references, strict=True))
    assert found == pytest.approx(right / len(evaluated.said))
