"""`python -m pufferfish_bench` is `pufferfish-run`."""

from pufferfish_bench.cli.run import run

if __name__ == "__main__":
    run()
