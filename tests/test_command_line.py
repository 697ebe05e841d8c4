"""The command line, in a process of its own, as those have it who write no Python."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from real_data import GROCERIES

from numpyro_ndpp import command_line
from numpyro_ndpp.datasets import load_baskets, save_baskets, simulate_baskets
from numpyro_ndpp.learning import Fit

ROOT = Path(__file__).parents[1]


def run(*arguments, folder, status=0):
    """What a command writes to its standard output, or to its standard error if it fails."""
    command = [sys.executable, "-m", "numpyro_ndpp", *map(str, arguments)]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    # Without a settled number of columns, help would be broken where the terminal ends.
    environment = os.environ | {"PYTHONPATH": paths, "COLUMNS": "120"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3000)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def write_orders(path, baskets, items):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["order", "item"])
        writer.writerows([i, items[item]] for i, basket in enumerate(baskets) for item in basket)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a table of orders, and a kernel learned from it."""
    path = tmp_path_factory.mktemp("shop")
    shop = simulate_baskets(300)
    write_orders(path / "orders.csv", shop.baskets, shop.items)
    few = ("--rank", 10, "--steps", 50, "--quiet")
    said = run("learn", "orders.csv", "--kernel", "kernel.npz", *few, folder=path).splitlines()
    assert "baskets of 12 items to learn from" in said[0]
    assert any(line.startswith("the same by popularity alone: ") for line in said)
    assert said[-1] == "The kernel is in kernel.npz"
    assert sorted(os.listdir(path)) == ["kernel.npz", "orders.csv"]
    return path


def test_recommendations(folder):
    result = Fit.load(folder / "kernel.npz")
    assert result.settings["min_size"] == 1  # an order without items is in no table
    lines = run("recommend", "kernel.npz", "bread", "tea", "-n", 3, "--exclude", "rice", folder=folder).splitlines()
    found = [(line.split("  ")[1], float(line.split("  ")[0])) for line in lines]
    expected = result.recommend(["bread", "tea"], 3, exclude=["rice"])
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert [p for _, p in found] == pytest.approx([p for _, p in expected], abs=1e-3)


@pytest.mark.slow
def test_baskets_are_drawn_into_a_file_that_can_be_read(folder, capsys):
    given = ("--given", "bread", "--size", 3)
    assert command_line.main(["sample", str(folder / "kernel.npz"), "-n", "20", *map(str, given)]) == 0
    drawn = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    assert len(drawn) == 20
    assert all(len(set(basket)) == 3 and basket[0] == "bread" for basket in drawn)
    output = folder / "drawn.csv"
    arguments = ["sample", str(folder / "kernel.npz"), "-n", "20", "--seed", "1", "--output", str(output)]
    assert command_line.main(arguments) == 0
    assert len(load_baskets(output, layout="baskets").baskets) == 20
    output.unlink()


@pytest.mark.slow
def test_diagnosis(folder):
    said = run("diagnose", "kernel.npz", "--steps", 200, "--quiet", folder=folder)
    assert said.startswith("<Fit: ndpp of 12 items")
    assert "size of a basket: " in said
    assert "r_hat" in said


def test_help_has_examples(folder, capsys):
    texts = [run("--help", folder=folder)]
    for command in ("learn", "recommend", "sample", "diagnose"):
        with pytest.raises(SystemExit) as stop:
            command_line.main([command, "--help"])
        assert stop.value.code == 0
        texts.append(capsys.readouterr().out)
    for said in texts:
        assert "examples:\n  python -m numpyro_ndpp learn orders.csv --kernel kernel.npz" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learn", "orders.csv"], "the following arguments are required: --kernel; see .* --help"),
        (["bake"], "invalid choice: 'bake'"),
        (["learn", "none.csv", "--kernel", "k.npz"], "none.csv: No such file or directory"),
        (["learn", "orders.csv", "--kernel", "no/k.npz"], "--kernel: no/k.npz is not a file in a folder that can"),
        (["learn", "orders.csv", "--kernel", "orders.csv"], "--kernel: orders.csv is the file of baskets itself"),
        (["learn", "pairs.csv", "--kernel", "k.npz"], "every line has two items.*--layout orders.*--layout baskets"),
        (
            ["learn", "orders.csv", "--order", "id", "--item", "item", "--kernel", "k.npz"],
            "no column 'id'; the",
        ),
        (
            ["learn", "orders.csv", "--kernel", "k.npz", "--rank", "2"],
            "more items than the rank of 2, .*raise the",
        ),
        (["recommend", "kernel.npz", "bred"], "basket: no item is called 'bred'; there is 'bread'"),
        (["recommend", "orders.csv", "bread"], "orders.csv is not a file that numpyro_ndpp saved"),
        (["recommend", "kernel.npz", "bread", "-n", "0"], "num must be at least 1, got 0"),
        (["sample", "kernel.npz", "--size", "99"], "size must be between 0 and .* = 10, got 99"),
        (["sample", "kernel.npz", "-n", "2", "--output", "no/b.csv"], "b.csv could not be written"),
        (["diagnose", "kernel.npz", "--chains", "0"], "num_chains must be at least 1, got 0"),
    ],
)
def test_mistakes_are_one_line(folder, monkeypatch, capfd, arguments, message):
    monkeypatch.chdir(folder)
    (folder / "pairs.csv").write_text("1,5\n1,1\n2,2\n")
    before = sorted(os.listdir(folder))
    try:
        status = command_line.main(arguments)
    except SystemExit as stop:
        status = stop.code
    said = capfd.readouterr().err
    assert status == 2
    assert said.startswith("error: ")
    assert len(said.splitlines()) == 1
    assert re.search(message, said), said
    assert sorted(os.listdir(folder)) == before
    (folder / "pairs.csv").unlink()


def test_mistake_in_a_process_of_its_own(folder):
    said = run("recommend", "kernel.npz", "bred", folder=folder, status=2)
    assert said == "error: basket: no item is called 'bred'; there is 'bread'\n"


def test_interrupted_learning_leaves_the_kernel_as_it_was(folder, monkeypatch, capsys):
    before = (folder / "kernel.npz").read_bytes()

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "fit", interrupted)
    arguments = ["learn", str(folder / "orders.csv"), "--kernel", str(folder / "kernel.npz"), "--quiet"]
    assert command_line.main(arguments) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
    assert (folder / "kernel.npz").read_bytes() == before


def judged(said):
    """What `learn` says of a kernel: the numbers of each line, a mean and its limits."""
    found = re.findall(r"^(.+): (\S+) \((\S+) to (\S+)\)$", said, re.MULTILINE)
    return {name: [float(number) for number in numbers] for name, *numbers in found}


@pytest.mark.slow
@pytest.mark.long
def test_groceries_with_defaults(tmp_path):
    if not GROCERIES.exists():
        pytest.skip(f"no real baskets: {GROCERIES.name} is not there")
    data = load_baskets(GROCERIES)
    write_orders(tmp_path / "orders.csv", data.baskets, data.items)
    save_baskets(tmp_path / "same.npz", data.baskets, data.items)
    started, learned = (
        judged(run("learn", file, "--kernel", "kernel.npz", "--quiet", *more, folder=tmp_path))
        for file, more in (("same.npz", ("--steps", 1)), ("orders.csv", ()))
    )
    # In the log-likelihood it gains, but in the rank nothing over popularity, nor over its start (docs: learning).
    assert learned["mean log-likelihood of a new basket"][0] > started["mean log-likelihood of a new basket"][0] + 0.2
    rank, low, _ = learned["mean percentile rank of a hidden item"]
    popular, low_of_popular, _ = learned["the same by popularity alone"]
    assert min(rank, popular) > 80
    assert rank > low_of_popular
    assert popular > low
    recommended = run("recommend", "kernel.npz", "butter", "whole milk", folder=tmp_path).splitlines()
    assert len(recommended) == 10
    assert {line.split("  ")[1] for line in recommended} <= set(data.items)
    drawn = run("sample", "kernel.npz", "-n", 100, folder=tmp_path).splitlines()
    assert len(drawn) == 100
    sizes = [len(row) for row in csv.reader(drawn)]
    assert min(sizes) >= 1
    assert abs(np.mean(sizes) - np.mean(list(map(len, data.baskets)))) < 1.5
