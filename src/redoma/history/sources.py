"""Finds what makes a run nondeterministic (the clock, random numbers, the machine), with rules like those of a policy.

It is used to explain an observed difference. Running the code twice finds what it overlooks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

from ..models import Decision, Request
from ..policy import Policy, Rule, evaluate


class _Source(NamedTuple):
    """A source of differences. The fields are those of a rule, with entries separated by commas."""

    reason: str
    calls: str = ""
    commands: str = ""
    imports: str = ""
    attributes: str = ""
    pattern: str = ""


_SEEDED = "it draws random numbers, and their seed is not on record"

SOURCES = (
    _Source(
        "it reads the clock",
        calls="time.time,time.time_ns,time.monotonic*,time.perf_counter*,time.process_time*,time.localtime,time.gmtime,"
        "time.ctime,time.asctime,time.strftime,datetime.datetime.now,datetime.datetime.utcnow,datetime.datetime.today,"
        "datetime.date.today",
        commands="date,uptime,time,last,hwclock",
        pattern=r"\$\{?(SECONDS|EPOCHSECONDS|EPOCHREALTIME)\b",
    ),
    _Source(
        "it draws random numbers that no seed repeats",
        calls="os.urandom,os.getrandom,secrets.*,uuid.uuid1,uuid.uuid4,random.SystemRandom*,random.Random,"
        "numpy.random.default_rng,tempfile.*",
        commands="mktemp,shuf,uuidgen,openssl rand,openssl gen*,ssh-keygen",
        pattern=r"/dev/u?random\b|\$\{?S?RANDOM\b",
    ),
    _Source(_SEEDED, calls="random.*,numpy.random.*"),
    _Source(
        "it shows numbers of processes or threads, or addresses",
        calls="os.getpid,os.getppid,threading.get_ident,threading.get_native_id,id",
        pattern=r"\$\$|\$!|\$\{?(BASHPID|PPID)\b",
    ),
    _Source(
        "it looks at the machine or its environment",
        calls="os.uname,os.cpu_count,os.getloadavg,platform.*,psutil.*,socket.gethostname",
        commands="env,printenv,hostname,uname,whoami,id,ps,top,free,df,du,nproc,lscpu,lsblk,mount,w,who",
        attributes="os.environ,os.environb",
        pattern="/proc/|/sys/",
    ),
    _Source(
        "it uses the network, which a replay doesn't have",
        commands="curl,wget,nc,ncat,ping,dig,host,nslookup,ssh,scp,rsync,git fetch,git pull,git clone,git push,"
        "pip install,npm install",
        imports="socket,ssl,urllib.request,http.client,requests,httpx,aiohttp,ftplib",
    ),
    _Source(
        "it does several things at a time, in no certain order",
        imports="threading,multiprocessing,concurrent.futures",
    ),
)


@functools.cache
def _policy() -> Policy:
    def entries(text: str) -> tuple[str, ...]:
        return tuple(filter(None, text.split(",")))

    return Policy(
        name="sources",
        rules=tuple(
            Rule(
                id=source.reason,
                decision=Decision.PROMPT,
                reason=source.reason,
                calls=entries(source.calls),
                command=entries(source.commands),
                imports=entries(source.imports),
                attributes=entries(source.attributes),
                pattern=source.pattern,
            )
            for source in SOURCES
        ),
    )


def sources(request: Request, *, seeded: bool) -> Iterator[str]:
    """Yield possible reasons for a different output, each once, with its first location. `seeded`: whether the seed of
    the random numbers is known.
    """
    known = {_SEEDED} if seeded else set()
    for finding in evaluate(_policy(), request).findings:
        if finding.rule not in known:
            known.add(finding.rule)
            line = f"line {finding.line}: " if finding.line else ""
            yield f"{finding.reason} ({line}{finding.text[:60]})" if finding.text else finding.reason
