"""docs/recipes.md, the heads of the recipes and what `temper plan` says of them agree, and no plan meets a limit."""

import re
from datetime import date
from pathlib import Path

import pytest
from support.recipe_pages import PAGE, RECIPES, ROOT, head_of, models_in, page, plan_of, results_of

from temper.orchestrator.tools.preflight.plan.limits import size


def test_the_page_is_what_heads_and_plans_say_and_no_limit_would_be_hit(tmp_path: Path) -> None:
    made = page(models_in(tmp_path))
    assert PAGE.read_text(encoding="utf-8") == made, (
        "PYTHONPATH=. .venv/bin/python tests/support/recipe_pages.py writes it"
    )
    assert made.count("none would be hit") == len(RECIPES)
    assert "would be hit: " not in made


def test_every_configuration_that_is_shipped_is_on_the_page() -> None:
    shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.yaml")}
    assert shipped == set(RECIPES)


def test_the_page_of_clusters_has_the_plans_of_more_machines(tmp_path: Path) -> None:
    clusters = (PAGE.parent / "clusters.md").read_text(encoding="utf-8")
    models = models_in(tmp_path)
    for machines in (2, 4, 16):
        plan = plan_of(ROOT / "configs/recipes/two_hosts.yaml", models, f"{machines}x8xH100-80G")
        assert plan.rank is not None
        assert plan.engine is not None
        assert plan.time is not None
        assert all(limit.holds for limit in plan.limits)
        cells = [
            *(str(machines), str(plan.ranks), f"{plan.engines} of {plan.engine.processes} GPUs", size(plan.rank.peak)),
            *(f"{plan.time.step_s:,.0f} s", f"{plan.time.hours:,.1f} h, {plan.time.hours * plan.gpus:,.0f} GPU hours"),
        ]
        assert f"| {' | '.join(cells)} |" in clusters


@pytest.mark.parametrize("name", RECIPES)
def test_a_head_is_short_and_what_was_run_has_its_results(name: str) -> None:
    path = ROOT / name
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith("#")]) <= 9
    assert len(lines) <= 50
    head = head_of(path)
    assert head.about.endswith(".")
    assert (head.ran is None) == (not head.place)
    if head.ran is not None:
        assert date(2026, 1, 1) < head.ran
        results = results_of(head)
        assert re.search(r"^\|---", results, re.MULTILINE), "no table"
        pictures = re.findall(r"^!\[.+\]\((\S+)\)$", results, re.MULTILINE)
        assert bool(pictures) == head.curve
        assert all((ROOT / head.place).parent.joinpath(picture).is_file() for picture in pictures)


@pytest.mark.parametrize(
    "badge",
    [
        "",
        "badge: tried on 1xL4-24G",
        "badge: run yesterday on 1xL4-24G: docs/results.md",
        "badge: run 2026-11-22 on 1xL4-24G",
        "badge: run 2026-11-22 on 1xL4-24G: docs/results.md",
        "badge: run 2026-11-22 on 1xL4-24G, without a table: docs/results.md#the-demo",
    ],
)
def test_a_badge_that_says_less_than_it_must_is_refused(badge: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"# yaml-language-server\n# {badge}\n# Mine.\n# Change first: all.\nname: mine\n")
    with pytest.raises(ValueError, match="its head needs `badge:"):
        head_of(path)
    path.write_text("# yaml-language-server\n# badge: planned for 1xL4-24G\n# Mine.\nname: mine\n")
    with pytest.raises(ValueError, match="its head needs `badge:"):
        head_of(path)
