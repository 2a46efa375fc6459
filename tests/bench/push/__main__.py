"""`python -m bench.push`."""

from bench.push.bench import main

if __name__ == "__main__":
    main()
