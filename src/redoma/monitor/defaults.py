"""The ready-made checks: what is worth knowing of any machine, with the reason for each number."""

from __future__ import annotations

from .model import Check

CHECKS = (
    Check(
        name="disk_space",
        # By what is left, too: 5 % of 8 TB is 400 GB, which is no emergency; 5 % of 20 GB is one package upgrade.
        rule="""
full = [d for d in disk if d['percent'] >= 85 and d['free'] < 50 * 2**30]
tight = any(d['percent'] >= 95 and d['free'] < 10 * 2**30 for d in full)
shown = full or sorted(disk, key=lambda d: -d['percent'])[:1]
{'state': 'critical' if tight else 'warning' if full else 'ok',
 'message': ', '.join(f"{d['mount']} is at {d['percent']} %, {d['free'] / 2**30:.1f} GiB are left" for d in shown)}
""",
        about="File systems that fill up: from 85 % (95 % is critical), unless 50 GiB (10 GiB) are left.",
    ),
    Check(
        name="inodes",
        # They can't be added to an ext4 once it is made, so the warning has to come early.
        rule="""
full = [d for d in disk if d['inodes_percent'] >= 85]
tight = any(d['inodes_percent'] >= 95 for d in full)
{'state': 'critical' if tight else 'warning' if full else 'ok',
 'message': ', '.join(f"{d['mount']} has used {d['inodes_percent']} % of its inodes" for d in full)}
""",
        about="Inodes: a disk without any is full however many bytes are left.",
    ),
    Check(
        name="memory",
        # Of what is available, cache not counted as used. At 97 % the kernel is about to end somebody.
        rule="""
{'state': 'critical' if memory['percent'] >= 97 else 'warning' if memory['percent'] >= 90 else 'ok',
 'message': f"{memory['percent']} % of the memory is used, {memory['available'] / 2**20:.0f} MiB are available"}
""",
        about="Memory in use, of this machine or of what its container is given: 90 %, 97 % is critical.",
    ),
    Check(
        name="swap",
        # Swap that is full while memory is free holds what nobody uses. Only both together are slow.
        rule="swap['total'] > 0 and swap['percent'] >= 80 and memory['percent'] >= 80",
        message="{swap['percent']} % of the swap and {memory['percent']} % of the memory are used",
        about="Swap that fills up because memory does.",
    ),
    Check(
        name="load",
        # Five minutes: one is a compiler run. Twice as many as can run at a time wait noticeably; at eight times nobody
        # gets to log in any more.
        rule="""
{'state': 'critical' if load['per_cpu'] >= 8 else 'warning' if load['per_cpu'] >= 2 else 'ok',
 'message': f"the load is {load['five']:.1f} over five minutes, {load['per_cpu']} for each processor"}
""",
        about="Load over five minutes for each processor: 2, 8 is critical.",
    ),
    Check(
        name="zombies",
        # One that its parent is about to collect is normal at any moment, and of a large build so are twenty for some
        # seconds; for a minute they are a parent that never does.
        rule="processes['zombie'] >= 20",
        lasting=60,
        message="{processes['zombie']} processes have ended and are not collected,"
        " the first by process {processes['zombies'][0]['parent']}",
        about="Processes that have ended and that nobody collects.",
    ),
    Check(
        name="blocked",
        # Each processor can keep a disk or two busy. Many more wait for storage that doesn't come.
        rule="processes['blocked'] > 4 + 2 * cpu['count']",
        message="{processes['blocked']} processes wait for a disk or a server",
        about="Processes that wait for storage and can't be interrupted.",
    ),
    Check(
        name="process_numbers",
        # Beyond, nothing can be started: also no shell to look what it is.
        rule="processes['total'] >= 0.8 * processes['most']",
        message="{processes['total']} of {processes['most']} process numbers are used",
        severity="critical",
        about="Process numbers that run out.",
    ),
    Check(
        name="read_only",
        # One that was mounted read-only is meant to be; one that only its superblock says it of has had an error.
        rule="any(m['broke'] for m in mounts)",
        message="read-only since an error: {', '.join(m['mount'] for m in mounts if m['broke'])}",
        severity="critical",
        about="File systems that the kernel has made read-only.",
    ),
    Check(
        name="mounts",
        rule="any(not m['answers'] for m in mounts)",
        message="no answer from {', '.join(m['mount'] for m in mounts if not m['answers'])}",
        severity="critical",
        about="File systems that don't answer, as when their server is gone.",
    ),
    Check(
        name="temperature",
        # By what the sensor itself calls high; where it says nothing, 95 °C is where processors begin to slow down.
        rule="""
hot = [t for t in temperatures if t['current'] >= (t['high'] or 95)]
burning = any(t['critical'] and t['current'] >= t['critical'] for t in hot)
{'state': 'critical' if burning else 'warning' if hot else 'ok',
 'message': ', '.join(f"{t['sensor']} is at {t['current']:.0f} °C" for t in hot)}
""",
        about="Sensors above what they call high; fine where there are none.",
    ),
    Check(
        name="clock",
        # 2026-01-01: before this was written. A clock that stands there breaks certificates, logs and approvals alike.
        rule="now < 1767225600",
        message="the clock says {now:.0f}, which is in the past",
        severity="critical",
        about="A clock that was never set.",
    ),
)
