"""Ordinary programs: the language itself and the parts of its library that touch no file or socket."""

from __future__ import annotations

import re

from .ordinary_program import Program, python

PROGRAMS: tuple[Program, ...] = (
    python(
        "hashes, signatures and secrets",
        """
        import hashlib
        import hmac
        import secrets

        for name in ("md5", "sha1", "sha256", "blake2b"):
            print(name, hashlib.new(name, b"redoma").hexdigest()[:16])
        print(hashlib.sha3_256(b"").hexdigest()[:8], hashlib.scrypt(b"x", salt=b"y", n=2, r=8, p=1)[:2].hex())
        print(hmac.compare_digest(hmac.digest(b"k", b"m", "sha256"), hmac.digest(b"k", b"m", "sha256")))
        print(hashlib.pbkdf2_hmac("sha256", b"p", b"s", 1000).hex()[:8], len(secrets.token_bytes(32)))
        with open("f.bin", "rb") as file:
            print(hashlib.file_digest(file, "sha256").hexdigest()[:16])
        """,
        """
        md5 66b3b62da114fc90
        sha1 0269c1fd5a2bd69b
        sha256 fc869b8267bbb8f7
        blake2b 81462d87a2768ae9
        a7ffc6f8 08bf
        True
        07f5f5e2 32
        9192c25b734fcbad
        """,
        files={"f.bin": b"\0" * 100_000},
    ),
    python(
        "the locale is UTF-8",
        """
        import locale
        import sys

        print(locale.setlocale(locale.LC_ALL, ""), locale.getpreferredencoding(False).lower())
        print(sys.getfilesystemencoding(), sys.stdout.encoding.lower(), sys.stdin.encoding.lower())
        print(locale.format_string("%.2f", 1234.5, grouping=True), open("x", "w").encoding.lower())
        print(sorted(["zebra", "Árvore", "abacate"], key=locale.strxfrm)[-1])
        """,
        """
        C.UTF-8 utf-8
        utf-8 utf-8 utf-8
        1234.50 utf-8
        Árvore
        """,
    ),
    python(
        "time zones by name",
        """
        import time
        from datetime import datetime, timedelta, timezone
        from zoneinfo import ZoneInfo, available_timezones

        moment = datetime(2024, 7, 1, 12, tzinfo=timezone.utc)
        for zone in ("America/Sao_Paulo", "Asia/Kathmandu", "Australia/Lord_Howe"):
            print(zone, moment.astimezone(ZoneInfo(zone)).isoformat())
        print(len(available_timezones()) > 400, (moment + timedelta(days=60)).strftime("%A %d %B %Y"))
        print(time.strftime("%H:%M %Z", time.localtime(0)), datetime(2024, 1, 1).astimezone().utcoffset())
        """,
        """
        America/Sao_Paulo 2024-07-01T09:00:00-03:00
        Asia/Kathmandu 2024-07-01T17:45:00+05:45
        Australia/Lord_Howe 2024-07-01T22:30:00+10:30
        True Friday 30 August 2024
        21:00 -03 -1 day, 21:00:00
        """,
        env={"TZ": "America/Sao_Paulo"},
    ),
    python(
        "clocks go forward",
        """
        import time

        start, cpu = time.monotonic(), time.process_time()
        time.sleep(0.02)
        sum(range(100_000))
        print(time.monotonic() - start >= 0.02, time.process_time() > cpu)
        print(time.perf_counter_ns() > 0, time.time() > 1.7e9)
        print(time.clock_getres(time.CLOCK_MONOTONIC) < 1, time.thread_time() >= 0)
        """,
        """
        True True
        True True
        True True
        """,
    ),
    python(
        "decimals, fractions, big and complex numbers",
        """
        import cmath
        import math
        from decimal import ROUND_HALF_EVEN, Decimal, getcontext
        from fractions import Fraction

        getcontext().prec = 40
        print(Decimal(1) / Decimal(7), Decimal("2.675").quantize(Decimal("0.01"), ROUND_HALF_EVEN))
        print(sum([Fraction(1, n) for n in range(1, 6)]), math.comb(100, 50))
        print(len(str(3 ** 5000)), (2 ** 521 - 1) % 1_000_003, pow(3, -1, 11), math.isqrt(10 ** 40))
        print(round(abs(cmath.exp(1j * math.pi) + 1), 10), f"{1e22:,.0f}", 0.1 + 0.2)
        """,
        """
        0.1428571428571428571428571428571428571429 2.68
        137/60 100891344545564193334812497256
        2386 819262 4 100000000000000000000
        0.0 10,000,000,000,000,000,000,000 0.30000000000000004
        """,
    ),
    python(
        "json, csv and xml, there and back",
        """
        import csv
        import io
        import json
        import xml.etree.ElementTree as ET

        with open("people.csv", newline="", encoding="utf-8") as file:
            people = list(csv.DictReader(file))
        print(json.dumps(people[0], ensure_ascii=False), json.loads('{"a": [1, 2.5, null, true]}'))
        out = io.StringIO()
        csv.writer(out, delimiter=";").writerow(["a;b", 'say "x"', 3])
        print(out.getvalue().strip())
        root = ET.fromstring("<casa><quarto n='1'>João</quarto><quarto n='2'/></casa>")
        print([(q.get("n"), q.text) for q in root.iter("quarto")], ET.tostring(root[1]))
        """,
        """
        {"nome": "Zoë, a \\"Grande\\"", "idade": "41"} {'a': [1, 2.5, None, True]}
        "a;b";"say ""x""\";3
        [('1', 'João'), ('2', None)] b'<quarto n="2" />'
        """,
        files={"people.csv": 'nome,idade\n"Zoë, a ""Grande""",41\n'},
    ),
    python(
        "configuration: toml, ini, shell words, arguments",
        """
        import argparse
        import configparser
        import shlex
        import tomllib

        print(tomllib.loads('[tool]\\nname = "x"\\nwhen = 2024-01-02')["tool"]["when"].year)
        ini = configparser.ConfigParser()
        ini.read_string("[a]\\nb = 1\\nc = ${b}\\n")
        print(dict(ini["a"]), shlex.split("a 'b c' d\\\\ e"))
        parser = argparse.ArgumentParser(prog="tool")
        parser.add_argument("--count", type=int, default=1)
        parser.add_argument("names", nargs="+")
        print(parser.parse_args(["--count", "3", "ana", "bia"]))
        parser.parse_args(["--count", "x"])
        """,
        """
        2024
        {'b': '1', 'c': '${b}'} ['a', 'b c', 'd e']
        Namespace(count=3, names=['ana', 'bia'])
        """,
        stderr=re.compile(r"usage: tool \[-h\] \[--count COUNT\].*error: .*invalid int value: 'x'\n", re.DOTALL),
        exit_code=2,
    ),
    python(
        "regular expressions and text in many scripts",
        r"""
        import re
        import textwrap
        import unicodedata

        log = "2024-05-01 ERROR disk\n2024-05-02 INFO ok\n2024-05-03 ERROR net"
        print(re.findall(r"^(\S+) ERROR (?P<what>\w+)$", log, re.MULTILINE))
        print(re.sub(r"(?<=\d)(?=(\d{3})+$)", ".", "1234567"), re.split(r"[,;]\s*", "a, b;c"))
        print("straße".upper(), "İ".lower() == "i̇", "ÇEDILHA".casefold(), unicodedata.name("ã"))
        print(unicodedata.normalize("NFD", "ação").encode("ascii", "ignore").decode(), len("👩‍🚀"))
        print(textwrap.fill("uma frase um pouco mais longa", 12).splitlines())
        print(f"{'coração':>10}|{'é':^5}|{'日本':<4}|{3.14159:08.3f}|{255:#x}|{1234567:_}|{0.256:.1%}")
        """,
        """
        [('2024-05-01', 'disk'), ('2024-05-03', 'net')]
        1.234.567 ['a', 'b', 'c']
        STRASSE True çedilha LATIN SMALL LETTER A WITH TILDE
        acao 3
        ['uma frase um', 'pouco mais', 'longa']
           coração|  é  |日本  |0003.142|0xff|1_234_567|25.6%
        """,
    ),
    python(
        "collections, heaps, iterators and statistics",
        """
        import bisect
        import heapq
        import itertools
        import operator
        import statistics
        from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
        from functools import lru_cache, partial, reduce, singledispatch

        print(Counter("abracadabra").most_common(2), deque(range(10), 3), heapq.nsmallest(2, [5, 1, 4]))
        print(list(itertools.islice(itertools.accumulate(itertools.count(1), operator.mul), 5)))
        print([(k, len(list(g))) for k, g in itertools.groupby("aabccc")], len(list(itertools.permutations(range(5)))))
        print(statistics.mean([1, 2, 4]), statistics.median([3, 1, 2]), round(statistics.stdev([2, 4, 4, 6]), 4))
        fib = lru_cache(None)(lambda n: n if n < 2 else fib(n - 1) + fib(n - 2))
        print(fib(200), reduce(operator.add, [[1], [2]]), partial(pow, 2)(5), bisect.bisect([1, 3, 5], 4))
        """,
        """
        [('a', 5), ('b', 2)] deque([7, 8, 9], maxlen=3) [1, 4]
        [1, 2, 6, 24, 120]
        [('a', 2), ('b', 1), ('c', 3)] 120
        2.3333333333333335 2 1.633
        280571172992510140037611932413038677189525 [1, 2] 32 2
        """,
    ),
    python(
        "random numbers, repeatable and not",
        """
        import os
        import random
        import uuid

        random.seed(42)
        print(random.randint(1, 100), random.choice("abcdef"), random.sample(range(10), 3))
        print(uuid.uuid5(uuid.NAMESPACE_DNS, "example.org"), uuid.uuid4() != uuid.uuid4(), uuid.uuid1().version)
        print(random.SystemRandom().random() != random.SystemRandom().random(), os.urandom(8) != os.urandom(8))
        """,
        """
        82 a [0, 4, 3]
        aad03681-8b63-5304-89e0-8ca8f49461b5 True 1
        True True
        """,
    ),
    python(
        "dataclasses, types, enums, protocols and matching",
        """
        import enum
        from dataclasses import asdict, dataclass, field, replace
        from typing import Generic, NamedTuple, Protocol, TypeVar, get_type_hints, runtime_checkable

        @dataclass(frozen=True, order=True)
        class Point:
            x: int
            y: int = 0
            tags: list[str] = field(default_factory=list, compare=False)

        class Color(enum.Flag):
            RED = enum.auto()
            BLUE = enum.auto()

        @runtime_checkable
        class Sized(Protocol):
            def __len__(self) -> int: ...

        T = TypeVar("T")

        class Box(Generic[T]):
            item: T

        class Row(NamedTuple):
            a: int
            b: str = "b"

        match Point(1, 2):
            case Point(x=1, y=y) if y > 1:
                print("matched", y)
        print(replace(Point(1), y=5), asdict(Point(3)), Point(1) < Point(2), sorted([Point(2), Point(1)])[0].x)
        print(Color.RED | Color.BLUE == Color.RED, isinstance([], Sized), Row(1), get_type_hints(Point)["x"], Box[int])
        """,
        """
        matched 2
        Point(x=1, y=5, tags=[]) {'x': 3, 'y': 0, 'tags': []} True 1
        False True Row(a=1, b='b') <class 'int'> __main__.Box[int]
        """,
    ),
    python(
        "objects are pickled, copied, referred to weakly and collected",
        """
        import copy
        import gc
        import pickle
        import sys
        import weakref

        class Node:
            def __init__(self, name):
                self.name, self.other, self.items = name, None, [1, 2]

        node = Node("n")
        again = pickle.loads(pickle.dumps(node, protocol=5))
        print(type(again) is Node, again.name, again.items, sys.modules["__main__"].Node is Node, Node.__module__)
        shallow, deep = copy.copy(node), copy.deepcopy(node)
        print(shallow.items is node.items, deep.items is node.items)
        a, b = Node("a"), Node("b")
        a.other, b.other = b, a
        gone = weakref.ref(a)
        weakref.finalize(a, print, "finalized")
        print(gone() is a)
        del a, b
        gc.collect()
        print(gone())
        """,
        """
        True n [1, 2] True __main__
        True False
        True
        finalized
        None
        """,
    ),
    python(
        "generators, contexts, decorators, exceptions in groups",
        """
        import contextlib
        import contextvars
        import functools

        var = contextvars.ContextVar("var", default="outside")

        def counter():
            total = 0
            while (n := (yield total)) is not None:
                total += n
            return total

        def outer():
            result = yield from counter()
            yield f"returned {result}"

        g = outer()
        print(next(g), g.send(2), g.send(3), g.send(None))

        @contextlib.contextmanager
        def setting(value):
            token = var.set(value)
            try:
                yield value
            finally:
                var.reset(token)

        with setting("inside"), contextlib.suppress(KeyError):
            print(var.get(), contextvars.copy_context()[var])
            {}["missing"]
        print(var.get())
        try:
            raise ExceptionGroup("several", [ValueError(1), TypeError(2), ValueError(3)])
        except* ValueError as group:
            print(len(group.exceptions))
        except* TypeError as group:
            print(group.exceptions)
        """,
        """
        0 2 5 returned 5
        inside inside
        outside
        2
        (TypeError(2),)
        """,
    ),
    python(
        "recursion goes deep, and too deep is an exception",
        """
        import sys

        def depth(n):
            return 0 if n == 0 else 1 + depth(n - 1)

        print(depth(900), sys.getrecursionlimit() >= 1000)
        try:
            depth(10 ** 6)
        except RecursionError as error:
            print(str(error)[:40])
        sys.setrecursionlimit(6000)
        print(depth(5000))
        """,
        """
        900 True
        maximum recursion depth exceeded
        5000
        """,
    ),
    python(
        "a module and a package that were given are imported",
        """
        import importlib
        import importlib.resources
        import importlib.util
        import sys

        import helper
        from package import inner

        print(helper.greet("Ana"), inner.VALUE, inner.__name__)
        print(importlib.resources.files("package").joinpath("data.txt").read_text().strip())
        with open("made.py", "w") as file:
            file.write("VALUE = 1")
        importlib.invalidate_caches()
        import made

        print(made.VALUE, importlib.util.find_spec("helper").origin, helper is sys.modules["helper"])
        helper.greet = None
        print(importlib.reload(helper).greet("Bia"))
        """,
        """
        Olá, Ana! 42 package.inner
        package data
        1 /workspace/helper.py True
        Olá, Bia!
        """,
        files={
            "helper.py": "def greet(name):\n    return f'Olá, {name}!'\n",
            "package/__init__.py": "",
            "package/inner.py": "VALUE = 42\n",
            "package/data.txt": "package data\n",
        },
    ),
    python(
        "a program is timed, profiled, traced, and knows its packages",
        """
        import cProfile
        import faulthandler
        import importlib.metadata
        import pstats
        import sys
        import timeit
        import tracemalloc

        print(timeit.timeit("x + 1", setup="x = 1", number=1000) > 0)
        with cProfile.Profile() as profile:
            sorted(range(100), key=lambda n: -n)
        print(pstats.Stats(profile).total_calls > 100)
        tracemalloc.start()
        kept = [bytes(1000) for _ in range(100)]
        print(tracemalloc.get_traced_memory()[0] > 100_000)
        faulthandler.enable()
        lines = []
        sys.settrace(lambda frame, event, arg: lines.append(event))
        (lambda: None)()
        sys.settrace(None)
        print(lines, importlib.metadata.version("numpy").split(".")[0] >= "2")
        """,
        """
        True
        True
        True
        ['call'] True
        """,
    ),
)
