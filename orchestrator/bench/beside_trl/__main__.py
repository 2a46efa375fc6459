"""`python -m orchestrator.bench.beside_trl`."""

from orchestrator.bench.beside_trl.bench import main

if __name__ == "__main__":
    main()
