"""Is the package fit to be published? Builds it, looks into what was built, and uses it as a stranger would.

    python .ci/release_check.py             # on every Python that pyproject.toml names, where it exists
    python .ci/release_check.py here        # on the Python that runs this
    python .ci/release_check.py 3.12 3.13

The wheel is built from the source distribution. It is installed into an empty environment, in a temporary folder
outside the clone, and there the README's examples and the commands run.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Of what git tracks, only these are of no use outside a clone.
NOT_SHIPPED = (".github/",)
# What is installed must not see the clone, nor this environment.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """What a command prints; if it fails, that is shown, and this ends too."""
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}\nfailed with status {done.returncode}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (source,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", source, wheel)
    return source, wheel


def same(what: str, found: set[str], expected: set[str]) -> None:
    if found != expected:
        sys.exit(f"{what} lacks {sorted(expected - found)}, and has {sorted(found - expected)} too much")


def look_into(source: Path, wheel: Path) -> None:
    """The source distribution has what git tracks; the wheel has the package and its metadata."""
    if not (ROOT / ".git").exists():
        print("no clone: what was built is not compared with what is tracked")
        return
    tracked = {name for name in run("git", "ls-files").splitlines() if not name.startswith(NOT_SHIPPED)}
    with tarfile.open(source) as archive:
        names = {member.name.split("/", 1)[1] for member in archive.getmembers() if member.isfile()}
    same(source.name, names - {"PKG-INFO"}, tracked)
    with zipfile.ZipFile(wheel) as archive:
        modules = {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}
    same(wheel.name, modules, {name for name in tracked if name.startswith("numpyro_ndpp/")})


def printed(*command: str) -> str:
    """What a command prints, or nothing where there is none or it fails."""
    try:
        return subprocess.run(command, text=True, capture_output=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def find_python(version: str) -> str | None:
    """An interpreter by its version, on the path or of pyenv."""
    for python in (f"python{version}", f"{printed('pyenv', 'prefix', version)}/bin/python"):
        if printed(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])") == version:
            return python
    return None


def use(wheel: Path, python: str, folder: Path) -> None:
    """Install the wheel into an empty environment, and run what the README shows."""
    run(python, "-m", "venv", folder / "environment")
    python = folder / "environment" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel)
    run(python, "-m", "pip", "check")
    shutil.copy(ROOT / "README.md", folder)
    lines = [f"{order},{item}\n" for order in range(200) for item in ("tea", "bread", f"item {order % 5}")]
    (folder / "orders.csv").write_text("order,item\n" + "".join(lines), encoding="utf-8")

    def installed(arguments: str) -> str:
        return run(python, *shlex.split(arguments), folder=folder)

    where = installed("-c 'import numpyro_ndpp; print(numpyro_ndpp.__file__)'").strip()
    version = installed("-c 'import numpyro_ndpp; print(numpyro_ndpp.__version__)'").strip()
    if not Path(where).is_relative_to(folder.resolve()) or version != PROJECT["version"]:
        sys.exit(f"version {PROJECT['version']} was installed, and {where} of version {version} is imported")
    installed("-m doctest -o ELLIPSIS -o NORMALIZE_WHITESPACE README.md")
    installed("-m numpyro_ndpp --help")
    installed("-m numpyro_ndpp learn orders.csv --kernel kernel.npz --rank 4 --steps 20 --quiet")
    drawn = installed("-m numpyro_ndpp sample kernel.npz -n 3").splitlines()
    if len(drawn) != 3:
        sys.exit(f"three baskets were asked for, and these were drawn: {drawn}")


def main() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    begun = time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - begun:4.0f} s  {text}", flush=True)

    with tempfile.TemporaryDirectory(prefix="numpyro_ndpp_release_") as name:
        folder = Path(name)
        source, wheel = build(folder / "dist")
        look_into(source, wheel)
        say(" and ".join(f"{path.name} ({path.stat().st_size >> 10} kB)" for path in (source, wheel)) + " are sound")
        for version in sys.argv[1:] or named:
            python = sys.executable if version == "here" else find_python(version)
            if python is None:
                say(f"no Python {version} here: left out")
                continue
            (folder / version).mkdir()
            use(wheel, python, folder / version)
            say(f"Python {version}: the README's examples and the commands run where only the wheel is installed")


if __name__ == "__main__":
    main()
