"""`eval MODEL` for real: its greedy answers are, token by token, those of a plain vLLM script on the same prompts."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models

from orchestrator.__main__ import main
from rollout.engines.vllm_settings import engine_arguments, limit_cpu, prepare_environment
from rollout.tokenizer import load_tokenizer

TOKENS = 24
ROWS = [
    {"question": f"Ann has {n} pens and buys {n + 1} more. How many?", "answer": f"#### {2 * n + 1}"} for n in range(6)
]
ROWS.append(ROWS[0])  # a row that stands twice is asked twice


def plain_script(model: Path, questions: list[list[dict[str, Any]]]) -> list[tuple[int, ...]]:
    """What anybody would write: the chat template, vLLM's own class, temperature 0."""
    prepare_environment()
    limit_cpu(threads=1, memory_gib=1)
    from vllm import LLM, SamplingParams

    tokenizer = load_tokenizer(model)
    texts = [
        str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        for messages in questions
    ]
    prompts = [{"prompt_token_ids": tokenizer(text, add_special_tokens=False)["input_ids"]} for text in texts]
    llm = LLM(model=str(model), dtype="float32", max_model_len=512, **engine_arguments())
    answers = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=TOKENS), use_tqdm=False)
    return [tuple(answer.outputs[0].token_ids) for answer in answers]


@pytest.mark.slow
def test_greedy_answers_to_a_file_are_those_of_a_plain_vllm_script(tmp_path: Path) -> None:
    model = tiny_models.nemotron_h(tmp_path / "model")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    command = ["eval", str(model), "--env", "math", "--eval-data", str(rows), "--greedy", "--max-tokens", str(TOKENS)]
    assert main([*command, "--runs-dir", str(tmp_path / "runs"), "--name", "it"]) == 0
    folder = tmp_path / "runs" / "it"
    result = json.loads((folder / "eval" / "model-model.json").read_text(encoding="utf-8"))
    assert (result["k"], result["sampling"]["temperature"], result["envs"]["math"]["samples"]) == (1, 0.0, len(ROWS))
    (file,) = (folder / "trajectories").glob("*.jsonl")
    played = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [
        one["messages"][0]["content"].startswith(row["question"]) for one, row in zip(played, ROWS, strict=True)
    ] == [True] * len(ROWS)
    expected = plain_script(model, [one["messages"] for one in played])
    assert [tuple(one["turns"][0]["sampled_ids"]) for one in played] == expected
    assert len({task["key"] for task in result["tasks"]["math"]}) == len(ROWS)
