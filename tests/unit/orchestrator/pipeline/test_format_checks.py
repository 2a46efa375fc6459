"""What a run's rows ask of a model's format."""

import json
from pathlib import Path

from temper.envs.binding import EnvConfig, bind
from temper.envs.data.config import DataConfig
from temper.orchestrator.pipeline.format_checks import needs_of


def test_every_row_that_is_read_is_looked_at_for_system_texts(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    function = {"name": "get", "parameters": {"type": "dict", "properties": {}, "required": []}}
    for count in (20, 21):
        asked = [[{"role": "user", "content": f"{n}?"}] for n in range(count)]
        for messages in asked[20:]:
            messages.insert(0, {"role": "system", "content": "Be brief."})
        rows = [{"question": [each], "function": [function], "ground_truth": [{"get": {}}]} for each in asked]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for streaming in (False, True):
            env = bind("tool_use", EnvConfig(data=DataConfig(path=str(path), streaming=streaming)))
            needs = needs_of({"tool_use": env}, seed=1, left_out=False)
            assert (needs.tools, needs.system) == (True, count == 21)
