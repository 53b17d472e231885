"""Kill the broker repeatedly under load, and check after each restart that it kept its guarantees.

    python bench/kill9.py                     200 rounds
    python bench/kill9.py --rounds 20 --seed 7 --seconds 0.1 3

Prints one line of totals and exits with 0; or prints the error and the directory with the data, and exits with 1.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.faults.crash.power import powered  # noqa: E402
from tests.faults.crash.rounds import CrashTest, Violation  # noqa: E402
from tests.support.broker import LeveretProcess  # noqa: E402
from tests.support.rabbitmq import RabbitProcess  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="seed of the clients' choices")
    parser.add_argument(
        "--seconds",
        type=float,
        nargs=2,
        default=(0.1, 1.5),
        metavar=("FROM", "TO"),
        help="how long the clients work before each kill",
    )
    parser.add_argument("--graceful", type=float, default=0.1, help="share of rounds that end by SIGTERM instead")
    parser.add_argument("--again", type=float, default=0.25, help="share of kills followed by one during recovery")
    parser.add_argument("--directory", type=Path, help="directory for the data, which is kept; a temporary one by default")
    parser.add_argument("--power", action="store_true", help="cut the power: unsynced writes are lost or torn")
    parser.add_argument("--broker", choices=("leveret", "rabbitmq"), default="leveret")
    arguments = parser.parse_args()
    directory = arguments.directory or Path(tempfile.mkdtemp(prefix="leveret-kill9-"))
    broker = RabbitProcess(directory) if arguments.broker == "rabbitmq" else LeveretProcess(directory)
    if arguments.power:
        broker = powered(directory, arguments.seed) or parser.error("--power needs a C compiler")
    test = CrashTest(broker, arguments.seed, directory / "journal.jsonl", redelivery=arguments.broker == "leveret")
    begun = time.monotonic()

    def progress(test: CrashTest) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {test.summary()}", flush=True)

    print(f"seed {arguments.seed}, data in {directory}", flush=True)
    try:
        test.run(
            arguments.rounds,
            tuple(arguments.seconds),
            graceful=arguments.graceful,
            again=arguments.again,
            progress=progress,
        )
        broker.check_log()
    except (Violation, AssertionError, RuntimeError) as error:
        broker.kill()
        broker.stop()
        print(f"FAILED with seed {arguments.seed}; the data is in {directory}\n{error}", file=sys.stderr)
        return 1
    except BaseException:
        broker.kill()
        broker.stop()
        raise
    if arguments.directory is None:
        shutil.rmtree(directory)
    what = "power cuts" if arguments.power else "kill -9"
    print(f"{what}: {test.summary()}; 0 lost, 0 came back, 0 invented, 0 out of order")
    return 0


if __name__ == "__main__":
    sys.exit(main())
