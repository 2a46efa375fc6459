"""`python -m temper.orchestrator.tools.bench.push`."""

from temper.orchestrator.tools.bench.push.bench import main

if __name__ == "__main__":
    main()
