"""`python -m orchestrator.bench.push`."""

from orchestrator.bench.push.bench import main

if __name__ == "__main__":
    main()
