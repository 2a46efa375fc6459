"""`python -m bench.beside_trl`."""

from bench.beside_trl.bench import main

if __name__ == "__main__":
    main()
