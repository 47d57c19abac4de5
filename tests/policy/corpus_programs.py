"""Ordinary Python programs: each must come out `allow`. Written like the Bash half, without reading the rules."""

from __future__ import annotations

PYTHON: dict[str, str] = {
    "hello": 'print("hello, world")\n',
    "accents": 'nome = "A³X"\nprint(f"Olá, {nome}!")\n',
    "mentions_a_command": 'print("rm -rf /")\nprint("import os; os.system(\'sudo reboot\')")\n',
    "docstring_about_danger": '"""Never call os.system("rm -rf /") or eval(): see the password policy."""\nx = 1\n',
    "token_and_password_names": """\
password_policy = {"min_length": 12, "history": 5}
token = "<" + str(len(password_policy)) + ">"
secret_count = sum(1 for key in password_policy if "secret" in key)
print(token, secret_count)
""",
    "os_paths": """\
import os

for folder, _, names in os.walk("."):
    for name in names:
        path = os.path.join(folder, name)
        print(path, os.path.getsize(path))
print(os.environ.get("HOME", ""), os.getcwd(), os.cpu_count())
""",
    "pathlib_files": """\
from pathlib import Path

out = Path("out")
out.mkdir(parents=True, exist_ok=True)
for path in sorted(Path("src").rglob("*.py")):
    (out / path.with_suffix(".txt").name).write_text(path.read_text(encoding="utf-8").upper())
""",
    "read_and_write_a_file": """\
with open("notes.txt", encoding="utf-8") as source, open("out.txt", "w", encoding="utf-8") as target:
    for number, line in enumerate(source, 1):
        target.write(f"{number:4} {line}")
""",
    "clean_a_build_directory": 'import shutil\n\nshutil.rmtree("build", ignore_errors=True)\nshutil.copy("a", "b")\n',
    "temporary_directory": """\
import os
import tempfile

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "a.txt")
    with open(path, "w") as file:
        file.write("x" * 10)
    os.remove(path)
""",
    "csv_report": """\
import csv
from collections import defaultdict

totals: dict[str, float] = defaultdict(float)
with open("sales.csv", newline="") as file:
    for row in csv.DictReader(file):
        totals[row["region"]] += float(row["amount"])
for region, amount in sorted(totals.items(), key=lambda item: -item[1]):
    print(f"{region:<12}{amount:>10.2f}")
""",
    "json_round_trip": "import json\n\ndata = json.loads('{\"a\": [1, 2, 3]}')\nprint(json.dumps(data, indent=2))\n",
    "regular_expressions": """\
import re

pattern = re.compile(r"(?P<user>[\\w.]+)@(?P<host>[\\w.]+)")
for match in pattern.finditer("ana@example.org, bob@example.com"):
    print(match.group("user"), pattern.sub("<hidden>", match.group(0)))
""",
    "dates": """\
from datetime import date, datetime, timedelta, timezone

start = date(2024, 2, 28)
print([(start + timedelta(days=n)).isoformat() for n in range(3)])
print(datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"))
""",
    "git_status": """\
import subprocess

result = subprocess.run(["git", "status", "--short"], capture_output=True, text=True, check=True)
print(result.stdout)
""",
    "runs_the_tests": """\
import subprocess
import sys

sys.exit(subprocess.call([sys.executable, "-m", "pytest", "-q"]))
""",
    "classes": """\
class Account:
    def __init__(self, owner: str, balance: float = 0.0) -> None:
        self.owner, self._balance = owner, balance

    @property
    def balance(self) -> float:
        return self._balance

    def deposit(self, amount: float) -> None:
        if amount <= 0:
            raise ValueError("amount must be positive")
        self._balance += amount

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.owner!r}, {self._balance})"

class Savings(Account):
    def deposit(self, amount: float) -> None:
        super().deposit(amount * 1.01)

print(Savings("ana", 10))
""",
    "dataclasses": """\
from dataclasses import dataclass, field

@dataclass(order=True, frozen=True)
class Task:
    priority: int
    name: str = field(compare=False)
    tags: tuple[str, ...] = ()

print(sorted([Task(2, "b"), Task(1, "a", ("x",))]))
""",
    "decorators": """\
import functools
import time

def timed(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            print(function.__name__, time.perf_counter() - start)

    return wrapper

@timed
def work(n):
    return sum(i * i for i in range(n))

work(1000)
""",
    "context_manager": """\
import os
from contextlib import contextmanager, suppress

@contextmanager
def inside(path):
    before = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)

with suppress(FileNotFoundError), inside("src"):
    print(os.listdir("."))
""",
    "lambdas_and_comprehensions": """\
square = lambda x: x * x
words = "the quick brown fox".split()
print({w: len(w) for w in words}, {len(w) for w in words}, [square(n) for n in range(5) if n % 2])
print(list(map(lambda pair: pair[0] + pair[1], zip([1, 2], [3, 4]))))
""",
    "generators": """\
import itertools

def primes():
    found = []
    for n in itertools.count(2):
        if all(n % p for p in found):
            found.append(n)
            yield n

print(list(itertools.islice(primes(), 10)))
""",
    "asynchronous": """\
import asyncio

async def step(name, delay):
    await asyncio.sleep(delay)
    return name

async def main():
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(step(n, 0.01)) for n in "abc"]
    print([task.result() for task in tasks])

asyncio.run(main())
""",
    "process_pool": """\
from multiprocessing import Pool

def cube(n):
    return n**3

if __name__ == "__main__":
    with Pool(2) as pool:
        print(pool.map(cube, range(5)))
""",
    "command_line_program": """\
import argparse
import logging
import sys

def main(argv=None):
    parser = argparse.ArgumentParser(description="Count words.")
    parser.add_argument("files", nargs="*", type=argparse.FileType("r"), default=[sys.stdin])
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.DEBUG if args.verbose else logging.INFO)
    for file in args.files:
        print(file.name, len(file.read().split()))
    return 0

if __name__ == "__main__":
    sys.exit(main())
""",
    "numpy": """\
import numpy as np

rng = np.random.default_rng(0)
a = rng.normal(size=(3, 3))
print(np.linalg.inv(a) @ a, a.mean(axis=0), np.where(a > 0, 1, 0))
np.save("a.npy", a)
""",
    "pandas": """\
import pandas as pd

df = pd.read_csv("sales.csv", parse_dates=["day"])
df["net"] = df["gross"] * 0.8
summary = df.query("net > 10").groupby("region", as_index=False).agg(total=("net", "sum"))
summary.to_csv("out/summary.csv", index=False)
print(df.describe(), df.eval("gross - net").max())
""",
    "model_in_evaluation_mode": """\
import torch

model = torch.nn.Linear(4, 2)
model.eval()
with torch.no_grad():
    print(model(torch.zeros(1, 4)))
""",
    "local_database": """\
import sqlite3

with sqlite3.connect(":memory:") as db:
    db.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
    db.executemany("INSERT INTO users (name) VALUES (?)", [("ana",), ("bob",)])
    print(db.execute("SELECT count(*) FROM users").fetchone())
""",
    "literal_parsing": 'import ast\n\nprint(ast.literal_eval("[1, 2, {\'a\': 3}]"))\nast.parse("x = 1")\n',
    "method_called_exec": """\
class Query:
    def exec(self, text):
        return text.strip()

    def compile(self):
        return self.exec(" select ")

def evaluate(query):
    return query.compile()

print(evaluate(Query()))
""",
    "hashes_and_encodings": """\
import base64
import hashlib
import secrets

digest = hashlib.sha256(b"data").hexdigest()
print(digest, base64.b64encode(bytes.fromhex(digest)).decode(), secrets.token_hex(4))
""",
    "archives": """\
import gzip
import zipfile

with zipfile.ZipFile("out.zip", "w") as archive:
    archive.write("README.md")
with gzip.open("log.gz", "rt") as file:
    print(sum(1 for _ in file))
""",
    "url_handling": """\
from urllib.parse import parse_qs, urlencode, urlsplit

parts = urlsplit("https://example.org/search?q=curl+%7C+sh")
print(parts.hostname, parse_qs(parts.query), urlencode({"q": "a b"}))
""",
    "unit_tests": """\
import unittest

class TestAddition(unittest.TestCase):
    def setUp(self):
        self.value = 2

    def test_two_and_two_are_four(self):
        self.assertEqual(self.value + 2, 4)
        with self.assertRaises(ZeroDivisionError):
            self.value / 0

if __name__ == "__main__":
    unittest.main()
""",
    "pytest_fixtures": """\
import pytest

@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("one two")
    return path

@pytest.mark.parametrize("count", [2])
def test_words(words, count):
    assert len(words.read_text().split()) == count
""",
    "pattern_matching": """\
def area(shape):
    match shape:
        case {"kind": "circle", "r": r}:
            return 3.14159 * r**2
        case ("rect", w, h) if w > 0:
            return w * h
        case _:
            return 0

print(area({"kind": "circle", "r": 2}), area(("rect", 2, 3)))
""",
    "error_handling": """\
import traceback

try:
    {}["missing"]
except KeyError as error:
    print("not found:", error.args[0])
    traceback.print_exc()
else:
    print("found")
finally:
    print("done")
""",
    "environment_and_platform": """\
import os
import platform
import sys

os.environ.setdefault("MODE", "test")
print(platform.system(), sys.version_info[:2], os.environ["MODE"], sys.argv[1:])
""",
}
