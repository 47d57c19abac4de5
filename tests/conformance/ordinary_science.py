"""Ordinary programs: numpy, pandas and matplotlib."""

from __future__ import annotations

import re
import zlib

from .ordinary_program import Program, python

_SALES = """\
date,city,product,units,price
2024-01-05,São Paulo,café,10,8.50
2024-01-20,Recife,açaí,4,12.00
2024-02-03,São Paulo,açaí,6,12.00
2024-02-14,Curitiba,café,,8.75
2024-03-01,Recife,café,9,8.25
"""

_NUMPY = ("numpy",)
_PANDAS = ("numpy", "pandas")


def _is_png(width: int, height: int) -> object:
    """Return a check that a file is a complete PNG of this size: the signature, the header and an end."""

    def check(data: bytes) -> bool:
        size = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        whole = data.endswith(b"IEND" + zlib.crc32(b"IEND").to_bytes(4, "big"))
        return data.startswith(b"\x89PNG\r\n\x1a\n") and data[12:16] == b"IHDR" and size == (width, height) and whole

    return check


PROGRAMS: tuple[Program, ...] = (
    python(
        "numpy solves, factors and inverts",
        """
        import numpy as np

        a = np.array([[4.0, -2.0, 1.0], [-2.0, 4.0, -2.0], [1.0, -2.0, 4.0]])
        x = np.linalg.solve(a, np.array([11.0, -16.0, 17.0]))
        print([round(float(v), 6) for v in x])
        w, v = np.linalg.eigh(a)
        print(np.allclose(v @ np.diag(w) @ v.T, a), np.all(np.diff(w) >= 0))
        u, s, vt = np.linalg.svd(a)
        print(round(float(np.linalg.det(a)), 6), np.allclose(u * s @ vt, a))
        q, r = np.linalg.qr(a)
        print(np.allclose(q @ r, a), np.allclose(np.linalg.inv(a) @ a, np.eye(3)))
        """,
        """
        [1.0, -2.0, 3.0]
        True True
        36.0 True
        True True
        """,
        preload=_NUMPY,
    ),
    python(
        "numpy draws repeatable and unrepeatable random numbers",
        """
        import numpy as np

        print(np.random.RandomState(42).randint(0, 100, 5).tolist())
        rng = np.random.default_rng(7)
        sample = rng.normal(10, 2, 200_000)
        print(round(float(sample.mean()), 1), round(float(sample.std()), 1))
        print(np.random.default_rng().bytes(16) != np.random.default_rng().bytes(16))
        """,
        """
        [51, 92, 14, 71, 60]
        10.0 2.0
        True
        """,
        preload=_NUMPY,
    ),
    python(
        "numpy finds two tones with a Fourier transform",
        """
        import numpy as np

        t = np.arange(4096) / 4096
        signal = 3 * np.sin(2 * np.pi * 50 * t) + np.cos(2 * np.pi * 120 * t)
        spectrum = np.abs(np.fft.rfft(signal)) / len(t) * 2
        peaks = np.argsort(spectrum)[-2:][::-1]
        print([(int(p), round(float(spectrum[p]), 3)) for p in peaks])
        print(np.allclose(np.fft.irfft(np.fft.rfft(signal)), signal))
        """,
        """
        [(50, 3.0), (120, 1.0)]
        True
        """,
        preload=_NUMPY,
    ),
    python(
        "numpy holds arrays of a hundred megabytes",
        """
        import numpy as np

        a = np.arange(12_000_000, dtype=np.int64)
        print(a.nbytes, int(a.sum()), int(a[::-1][0]))
        b = a[a % 3 == 0]
        print(len(b), int(b[-1]))
        del a, b
        c = np.zeros((3000, 3000))
        c[np.diag_indices(3000)] = 1
        print(float(np.trace(c)))
        """,
        """
        96000000 71999994000000 11999999
        4000000 11999997
        3000.0
        """,
        preload=_NUMPY,
    ),
    python(
        "numpy multiplies matrices on several threads",
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor

        import numpy as np

        n = 600
        a = np.arange(n * n, dtype=np.float64).reshape(n, n) % 7
        wanted = [int(sum(int(x) * int(y) for x, y in zip(a[i], a[:, i]))) for i in (0, 299, 599)]

        def product(_):
            c = a @ a
            return [int(c[i, i]) for i in (0, 299, 599)]

        print(product(0) == wanted)
        with ThreadPoolExecutor(4) as pool:
            print(all(answer == wanted for answer in pool.map(product, range(12))))
        print(threading.active_count())
        """,
        """
        True
        True
        1
        """,
        preload=_NUMPY,
    ),
    python(
        "numpy works in forked children after it worked in the parent",
        """
        import multiprocessing as mp

        import numpy as np

        def norm(n):
            return float(np.round(np.linalg.norm(np.ones((n, n)) @ np.ones((n, n))), 3))

        if __name__ == "__main__":
            print(norm(400))
            with mp.get_context("fork").Pool(3) as pool:
                print(pool.map(norm, [100, 200, 300]))
        """,
        """
        160000.0
        [10000.0, 40000.0, 90000.0]
        """,
        preload=_NUMPY,
    ),
    python(
        "numpy saves, loads and maps files",
        """
        import numpy as np

        table = np.loadtxt("points.txt")
        np.save("table.npy", table)
        np.savez_compressed("both.npz", table=table, twice=table * 2)
        mapped = np.memmap("raw.bin", dtype="<i4", mode="w+", shape=(4,))
        mapped[:] = [1, 2, 3, 4]
        mapped.flush()
        print(np.load("table.npy").sum(), np.load("both.npz")["twice"].tolist())
        """,
        "10.0 [[2.0, 4.0], [6.0, 8.0]]",
        files={"points.txt": "1 2\n3 4\n"},
        outputs=("*.bin", "table.npy"),
        brings={
            "raw.bin": b"\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0",
            "table.npy": lambda data: data.startswith(b"\x93NUMPY"),
        },
        preload=_NUMPY,
    ),
    python(
        "pandas reads, groups and writes a table",
        """
        import pandas as pd

        sales = pd.read_csv("data/sales.csv", parse_dates=["date"])
        sales["total"] = sales["units"].fillna(0) * sales["price"]
        by_city = sales.groupby("city")["total"].agg(["count", "sum"]).sort_index()
        by_city.to_csv("by_city.csv")
        print(by_city.reset_index().to_string(index=False))
        print(int(sales["units"].isna().sum()), sales["date"].dt.month.tolist())
        """,
        """
             city  count    sum
         Curitiba      1   0.00
           Recife      2 122.25
        São Paulo      2 157.00
        1 [1, 1, 2, 2, 3]
        """,
        files={"data/sales.csv": _SALES},
        brings={"by_city.csv": "city,count,sum\nCuritiba,1,0.0\nRecife,2,122.25\nSão Paulo,2,157.0\n".encode()},
        preload=_PANDAS,
    ),
    python(
        "pandas merges and joins",
        """
        import pandas as pd

        left = pd.DataFrame({"key": ["a", "b", "c"], "x": [1, 2, 3]})
        right = pd.DataFrame({"key": ["b", "c", "d"], "y": [20, 30, 40]})
        print(left.merge(right, on="key").values.tolist())
        outer = left.merge(right, on="key", how="outer", indicator=True)
        print(outer["_merge"].astype(str).tolist())
        print(pd.concat([left, right]).fillna(0)["y"].sum())
        """,
        """
        [['b', 2, 20], ['c', 3, 30]]
        ['left_only', 'both', 'both', 'right_only']
        90.0
        """,
        preload=_PANDAS,
    ),
    python(
        "pandas knows time zones and resamples",
        """
        import pandas as pd

        times = pd.date_range("2018-11-03 22:00", periods=4, freq="h", tz="UTC")
        local = times.tz_convert("America/Sao_Paulo")
        print([t.strftime("%d %H:%M %z") for t in local])
        winter = pd.Timestamp("2024-01-15 12:00", tz="Europe/Lisbon")
        summer = pd.Timestamp("2024-07-15 12:00", tz="Europe/Lisbon")
        print(winter.utcoffset(), summer.utcoffset())
        series = pd.Series(range(6), index=pd.date_range("2024-01-31", periods=6, freq="12h"))
        print(series.resample("D").sum().tolist(), str(series.index[-1].date()))
        """,
        """
        ['03 19:00 -0300', '03 20:00 -0300', '03 21:00 -0300', '03 22:00 -0300']
        0:00:00 1:00:00
        [1, 5, 9] 2024-02-02
        """,
        preload=_PANDAS,
    ),
    python(
        "pandas pivots, and queries what sqlite holds",
        """
        import io
        import sqlite3

        import pandas as pd

        sales = pd.read_csv("sales.csv")
        table = sales.pivot_table(index="city", columns="product", values="price", aggfunc="mean", fill_value=0)
        print(table.columns.tolist(), table.loc["Recife"].tolist())
        with sqlite3.connect("sales.db") as db:
            sales.to_sql("sales", db, index=False)
            query = "select city, sum(units) as u from sales group by city order by u desc"
            print(pd.read_sql(query, db).values.tolist())
        print(len(pd.read_json(io.StringIO(sales.to_json(orient="records")))))
        """,
        """
        ['açaí', 'café'] [12.0, 8.25]
        [['São Paulo', 16.0], ['Recife', 13.0], ['Curitiba', nan]]
        5
        """,
        files={"sales.csv": _SALES},
        preload=_PANDAS,
    ),
    python(
        "matplotlib draws a figure into a file",
        """
        import os

        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        os.makedirs("charts")
        fig, (left, right) = plt.subplots(1, 2, figsize=(4, 2), dpi=100)
        left.plot([0, 1, 2], [0, 1, 4], label="n²")
        left.set_title("Função quadrática: $x^2$")
        left.legend()
        right.hist([1, 1, 2, 3, 3, 3], bins=3)
        fig.savefig("charts/figure.png")
        print(plt.get_backend().lower())
        """,
        "agg",
        stderr=re.compile(r"(Matplotlib is building the font cache; this may take a moment\.\n)?"),
        outputs=("**",),
        brings={"charts/figure.png": _is_png(400, 200)},
        preload=("numpy", "matplotlib.pyplot"),
    ),
    python(
        "matplotlib finds its way without being told of a missing screen",
        """
        import io

        import matplotlib.pyplot as plt
        import pandas as pd

        pd.DataFrame({"a": [1, 2, 3]}).plot(kind="bar")
        buffer = io.BytesIO()
        plt.savefig(buffer, format="svg")
        print(buffer.getvalue().rstrip().endswith(b"</svg>"), plt.get_backend().lower())
        """,
        "True agg",
        stderr=re.compile(r"(Matplotlib is building the font cache; this may take a moment\.\n)?"),
    ),
)
