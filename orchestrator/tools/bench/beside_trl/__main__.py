"""`python -m temper.orchestrator.tools.bench.beside_trl`."""

from temper.orchestrator.tools.bench.beside_trl.bench import main

if __name__ == "__main__":
    main()
