"""Ordinary programs: threads, processes and event loops."""

from __future__ import annotations

from .ordinary_program import Program, python

_WORK = """
import os

def square(n):
    return n * n

def put(queue, items):
    for item in items:
        queue.put((os.getpid() != os.getppid(), item))
"""

PROGRAMS: tuple[Program, ...] = (
    python(
        "threads share a counter under a lock",
        """
        import threading

        total, lock = 0, threading.Lock()

        def work():
            global total
            for _ in range(1000):
                with lock:
                    total += 1

        threads = [threading.Thread(target=work) for _ in range(20)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        print(total, threading.active_count())
        """,
        "20000 1",
    ),
    python(
        "threads wait for each other with conditions, events, barriers and locals",
        """
        import threading

        ready, local, barrier = threading.Event(), threading.local(), threading.Barrier(3)
        condition, seen = threading.Condition(), []

        def work(n):
            local.n = n
            ready.wait()
            barrier.wait(timeout=30)
            with condition:
                seen.append(local.n)
                condition.notify()

        for n in range(3):
            threading.Thread(target=work, args=(n,), daemon=True).start()
        ready.set()
        with condition:
            print(condition.wait_for(lambda: len(seen) == 3, timeout=30))
        print(sorted(seen), hasattr(local, "n"))
        """,
        """
        True
        [0, 1, 2] False
        """,
    ),
    python(
        "a queue feeds consumers",
        """
        import queue
        import threading

        jobs, done = queue.Queue(maxsize=5), queue.SimpleQueue()

        def consume():
            while (job := jobs.get()) is not None:
                done.put(job * 2)
                jobs.task_done()

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for t in threads:
            t.start()
        for n in range(100):
            jobs.put(n)
        jobs.join()
        for t in threads:
            jobs.put(None)
        for t in threads:
            t.join()
        print(sum(done.get() for _ in range(100)), done.empty())
        """,
        "9900 True",
    ),
    python(
        "futures on threads: map, as_completed, exceptions, time-outs",
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor, TimeoutError, as_completed

        def half(n):
            if n == 7:
                raise ValueError("seven")
            return n / 2

        with ThreadPoolExecutor(max_workers=8) as pool:
            futures = {pool.submit(half, n): n for n in range(10)}
            failed = [futures[f] for f in as_completed(futures) if f.exception()]
            print(failed, sum(f.result() for f in futures if not f.exception()))
            enough = threading.Event()
            try:
                pool.submit(enough.wait).result(timeout=0.01)
            except TimeoutError:
                print("late")
            enough.set()
        """,
        """
        [7] 19.0
        late
        """,
    ),
    python(
        "futures on processes",
        """
        import os
        from concurrent.futures import ProcessPoolExecutor

        def work(n):
            return n ** 3, os.getpid()

        if __name__ == "__main__":
            with ProcessPoolExecutor(3) as pool:
                answers = list(pool.map(work, range(20), chunksize=2))
            print(sum(cube for cube, _ in answers), os.getpid() not in {pid for _, pid in answers})
        """,
        "36100 True",
    ),
    python(
        "multiprocessing by fork, with pipes and queues",
        """
        import multiprocessing as mp

        def child(connection, queue):
            connection.send(connection.recv().upper())
            queue.put({"from": "child", "data": list(range(5))})

        if __name__ == "__main__":
            context = mp.get_context("fork")
            here, there = context.Pipe()
            queue = context.Queue()
            process = context.Process(target=child, args=(there, queue))
            process.start()
            here.send("olá")
            print(here.recv(), queue.get(timeout=30))
            process.join()
            print(process.exitcode)
        """,
        """
        OLÁ {'from': 'child', 'data': [0, 1, 2, 3, 4]}
        0
        """,
    ),
    python(
        "multiprocessing by spawn, with functions of a module that was given",
        """
        import multiprocessing as mp

        import work

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=work.put, args=(queue, ["a", "b"]))
            process.start()
            print(queue.get(timeout=60), queue.get(timeout=60))
            process.join()
            print(process.exitcode)
            with context.Pool(2) as pool:
                print(pool.map(work.square, range(5)))
        """,
        """
        (True, 'a') (True, 'b')
        0
        [0, 1, 4, 9, 16]
        """,
        files={"work.py": _WORK},
    ),
    python(
        "multiprocessing by spawn and by forkserver, with functions of the program itself",
        """
        import multiprocessing as mp

        def square(n):
            return n * n

        if __name__ == "__main__":
            for method in ("spawn", "forkserver"):
                with mp.get_context(method).Pool(2) as pool:
                    print(method, pool.map(square, range(4)))
        """,
        """
        spawn [0, 1, 4, 9]
        forkserver [0, 1, 4, 9]
        """,
    ),
    python(
        "a pool of processes: map, starmap, apply_async, exceptions",
        """
        from multiprocessing import Pool

        def divide(a, b=2):
            return a / b

        if __name__ == "__main__":
            with Pool(4) as pool:
                print(pool.map(divide, range(5)), pool.starmap(divide, [(1, 4), (9, 3)]))
                later = pool.apply_async(divide, (10, 4))
                print(later.get(timeout=30), sorted(pool.imap_unordered(divide, [2, 4, 6])))
                try:
                    pool.apply(divide, (1, 0))
                except ZeroDivisionError as error:
                    print(error)
        """,
        """
        [0.0, 0.5, 1.0, 1.5, 2.0] [0.25, 3.0]
        2.5 [1.0, 2.0, 3.0]
        division by zero
        """,
    ),
    python(
        "processes share values, arrays, locks and memory",
        """
        import multiprocessing as mp
        from multiprocessing import shared_memory

        def work(value, array, name, i):
            for _ in range(100):
                with value.get_lock():
                    value.value += 1
            array[i] = i * 1.5
            block = shared_memory.SharedMemory(name=name)
            block.buf[i] = 65 + i
            block.close()

        if __name__ == "__main__":
            context = mp.get_context("fork")
            value, array = context.Value("i", 0), context.Array("d", 4)
            block = shared_memory.SharedMemory(create=True, size=1 << 20)
            processes = [context.Process(target=work, args=(value, array, block.name, i)) for i in range(4)]
            for p in processes:
                p.start()
            for p in processes:
                p.join()
            print(value.value, list(array), bytes(block.buf[:4]), [p.exitcode for p in processes])
            block.close()
            block.unlink()
        """,
        "400 [0.0, 1.5, 3.0, 4.5] b'ABCD' [0, 0, 0, 0]",
    ),
    python(
        "a manager serves a dictionary to other processes",
        """
        from multiprocessing import Manager, Process

        def work(shared, names, n):
            shared[n] = n * n
            names.append(str(n))

        if __name__ == "__main__":
            with Manager() as manager:
                shared, names = manager.dict(), manager.list()
                processes = [Process(target=work, args=(shared, names, n)) for n in range(3)]
                for p in processes:
                    p.start()
                for p in processes:
                    p.join()
                print(sorted(shared.items()), sorted(names))
        """,
        "[(0, 0), (1, 1), (2, 4)] ['0', '1', '2']",
    ),
    python(
        "asyncio runs tasks, gathers, times out, cancels",
        """
        import asyncio

        async def work(n):
            await asyncio.sleep(0.01 * (3 - n))
            return n

        async def main():
            print(await asyncio.gather(*(work(n) for n in range(3))))
            try:
                async with asyncio.timeout(0.05):
                    await asyncio.sleep(60)
            except TimeoutError:
                print("timed out")
            task = asyncio.create_task(asyncio.sleep(60))
            await asyncio.sleep(0)
            task.cancel()
            print([type(e).__name__ for e in await asyncio.gather(task, return_exceptions=True)])
            print(await asyncio.to_thread(sum, [1, 2, 3]))
            async with asyncio.TaskGroup() as group:
                first = group.create_task(work(1))
            print(first.result())

        asyncio.run(main())
        """,
        """
        [0, 1, 2]
        timed out
        ['CancelledError']
        6
        1
        """,
    ),
    python(
        "asyncio starts programs and talks to them",
        """
        import asyncio
        import sys

        async def main():
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", "print(input()[::-1])", stdin=pipe, stdout=pipe
            )
            out, _ = await process.communicate(b"stressed\\n")
            print(out.decode().strip(), process.returncode)
            shell = await asyncio.create_subprocess_shell("echo shell; exit 3", stdout=asyncio.subprocess.PIPE)
            print((await shell.communicate())[0], shell.returncode)
            sleeper = await asyncio.create_subprocess_exec("sleep", "60")
            sleeper.kill()
            print(await sleeper.wait())

        asyncio.run(main())
        """,
        """
        desserts 0
        b'shell\\n' 3
        -9
        """,
    ),
    python(
        "asyncio serves over TCP and over a unix socket",
        """
        import asyncio

        async def answer(reader, writer):
            writer.write((await reader.readline()).decode().upper().encode())
            await writer.drain()
            writer.close()

        async def ask(opening):
            reader, writer = await opening
            writer.write("pão de açúcar\\n".encode())
            reply = await reader.read()
            writer.close()
            await writer.wait_closed()
            return reply.decode().strip()

        async def main():
            async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
                host, port = server.sockets[0].getsockname()
                print(host, await ask(asyncio.open_connection("localhost", port)))
            async with await asyncio.start_unix_server(answer, "server.sock"):
                print("unix", await ask(asyncio.open_unix_connection("server.sock")))

        asyncio.run(main())
        """,
        """
        127.0.0.1 PÃO DE AÇÚCAR
        unix PÃO DE AÇÚCAR
        """,
    ),
    python(
        "asyncio handles signals and runs blocking work in processes",
        """
        import asyncio
        import os
        import signal
        from concurrent.futures import ProcessPoolExecutor

        async def main():
            loop, seen = asyncio.get_running_loop(), asyncio.Event()
            loop.add_signal_handler(signal.SIGUSR1, seen.set)
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.wait_for(seen.wait(), 30)
            with ProcessPoolExecutor(1) as pool:
                print(await loop.run_in_executor(pool, pow, 2, 10))

        if __name__ == "__main__":
            asyncio.run(main())
        """,
        "1024",
    ),
    python(
        "a thread finishes after the main program has ended",
        """
        import threading
        import time

        printed = threading.Event()

        def late():
            printed.wait()
            time.sleep(0.2)
            print("thread done")

        threading.Thread(target=late).start()
        print("main done")
        printed.set()
        """,
        """
        main done
        thread done
        """,
    ),
    python(
        "signals reach their handlers, and an alarm interrupts",
        """
        import os
        import signal
        import time

        def handle(number, frame):
            print("got", signal.Signals(number).name)

        for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"):
            signal.signal(getattr(signal, name), handle)
            os.kill(os.getpid(), getattr(signal, name))

        class Late(Exception):
            pass

        def late(number, frame):
            raise Late

        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            time.sleep(30)
        except Late:
            print("interrupted")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        os.kill(os.getpid(), signal.SIGUSR2)
        print(signal.sigwait({signal.SIGUSR2}).name)
        """,
        """
        got SIGTERM
        got SIGINT
        got SIGUSR1
        got SIGHUP
        interrupted
        SIGUSR2
        """,
    ),
    python(
        "a program forks, execs, waits and reads from pipes",
        """
        import os
        import sys

        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(write, 1)
            os.execv(sys.executable, [sys.executable, "-c", "print('from the child'); raise SystemExit(5)"])
        os.close(write)
        with os.fdopen(read) as pipe:
            print(pipe.read().strip())
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        """
        from the child
        5
        """,
    ),
)
