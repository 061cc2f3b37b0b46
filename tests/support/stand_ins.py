"""A stand-in for the trainer, so that what a zygote imports once is cheap; it is found by the same name."""

import sys

from support.launching import WORKER, a_plan, launched

FINDER = """
import importlib.util, os, sys

class StandIns:
    def find_spec(self, name, path=None, target=None):
        package, _, module = name.partition(".")
        file = os.path.join(os.path.dirname(__file__), module + ".py")
        if package == "trainyard_trainer" and module in ("train", "preload"):
            return importlib.util.spec_from_file_location(name, file)

sys.meta_path.insert(0, StandIns())
"""
PRELOAD = "TRAINER = TORCH = ()\ndef preload(modules):\n    import trainyard_trainer.train\n"
TRAINER = """
import os, sys
IMPORTED_BY = os.getpid()

def main(arguments=None):
    scope = dict(IMPORTED_BY=IMPORTED_BY, arguments=arguments)
    exec(open(os.environ["SCRIPT"]).read(), scope)
    return scope.get("ending", 0)

if __name__ == "__main__":
    sys.exit(main())
"""
COMMAND = [sys.executable, "-m", "trainyard_trainer.train", "--flag", "value"]


def forked(folder, script, preload=PRELOAD, command=COMMAND, **changes):
    """The launcher over a stand-in trainer whose `main` runs `script`; `ending` in it is the exit code."""
    place = folder / "stand-ins"
    place.mkdir()
    for name, text in {
        "sitecustomize": FINDER,
        "preload": preload,
        "train": TRAINER,
        "script": WORKER + script,
    }.items():
        (place / f"{name}.py").write_text(text)
    environment = {"PYTHONPATH": str(place), "SCRIPT": str(place / "script.py"), "PYTHONUNBUFFERED": "1"}
    return launched(folder, plan=a_plan(procs=2), command=command, environment=environment, **changes)


def spoken(launcher):
    """The words of each line that a worker printed, by the number that the line begins with."""
    lines = [line.split() for line in launcher.out.decode().splitlines() if line.startswith("[rank ")]
    return {int(line[2]): line[3:] for line in lines}
