"""Ordinary programs: Bash scripts, and commands given word by word."""

from __future__ import annotations

import re

from redoma import Status

from .ordinary_program import Program, bash, command

_ACCESS = """\
10.0.0.1 GET /index.html 200 512
10.0.0.2 GET /missing 404 12
10.0.0.1 POST /form 200 64
10.0.0.3 GET /index.html 200 512
10.0.0.1 GET /missing 404 12
"""

_SCRIPTS: tuple[Program, ...] = (
    bash(
        "a pipeline counts what a log holds",
        r"""
        awk '$4 == 404 {print $1}' access.log | sort | uniq -c | sort -rn | sed 's/^ *//'
        cut -d' ' -f3 access.log | sort -u | tr '\n' ' '; echo
        grep -c GET access.log
        awk '{bytes += $5} END {print bytes}' access.log
        tail -n +2 access.log | head -1 | rev | cut -c1-2 | rev
        """,
        """
        1 10.0.0.2
        1 10.0.0.1
        /form /index.html /missing$
        4
        1112
        12
        """.replace("$", " "),
        files={"access.log": _ACCESS},
    ),
    bash(
        "here-documents, here-strings and quoting",
        r"""
        name="Zoë Açaí"
        cat <<END
        Olá, $name! $((6 * 7)) $(echo sub) `echo old`
        END
        cat <<'END'
        $name is not expanded
        END
        tr a-z A-Z <<< "here string"
        printf '%s|' "a b" 'c"d' e\ f $'tab\there'; echo
        echo "${name%% *} ${name##* } ${#name} ${name/ë/e} ${name^^} ${missing:-default} ${name:0:3}"
        """,
        """
        Olá, Zoë Açaí! 42 sub old
        $name is not expanded
        HERE STRING
        a b|c"d|e f|tab\there|
        Zoë Açaí 8 Zoe Açaí ZOË AÇAÍ default Zoë
        """,
    ),
    bash(
        "arrays, maps, loops, functions and arithmetic",
        r"""
        declare -A price=([café]=8 [pão]=2)
        fruits=(maçã "banana prata" uva)
        fruits+=(kiwi)
        echo "${#fruits[@]} ${fruits[1]} ${fruits[@]: -1}"
        for key in "${!price[@]}"; do echo "$key=${price[$key]}"; done | sort
        factorial() { local n=$1; (( n < 2 )) && echo 1 || echo $(( n * $(factorial $((n - 1))) )); }
        factorial 10
        for ((i = 0; i < 3; i++)); do printf '%d ' $((i ** 2)); done; echo $((0xff + 2#101 - 7 % 4))
        case "file.tar.gz" in *.zip) echo zip;; *.tar.*) echo tar;; esac
        i=0; while (( i < 10 )); do (( i++ )); (( i % 2 )) && continue; (( i > 6 )) && break; echo -n "$i "; done; echo
        [[ "abc123" =~ ^([a-z]+)([0-9]+)$ ]] && echo "${BASH_REMATCH[2]}"
        """,
        """
        4 banana prata kiwi
        café=8
        pão=2
        3628800
        0 1 4 257
        tar
        2 4 6$
        123
        """.replace("$", " "),
    ),
    bash(
        "traps run at the end and on signals",
        """
        trap 'echo "exit $?"' EXIT
        trap 'echo got usr1' USR1
        kill -USR1 $$
        (trap 'echo inner exit' EXIT; exit 2)
        echo "inner was $?"
        exit 9
        """,
        """
        got usr1
        inner exit
        inner was 2
        exit 9
        """,
        exit_code=9,
    ),
    bash(
        "process substitution and named pipes",
        """
        diff <(printf '1\\n2\\n3\\n') <(printf '1\\n3\\n4\\n')
        paste -d, <(seq 3) <(seq 4 6)
        mkfifo pipe
        (echo through the pipe > pipe) &
        cat < pipe
        wait
        seq 3 | tee >(wc -l > count) > /dev/null
        until [ -s count ]; do sleep 0.01; done
        cat count
        """,
        """
        2d1
        < 2
        3a3
        > 4
        1,4
        2,5
        3,6
        through the pipe
        3
        """,
    ),
    bash(
        "background jobs are waited for",
        """
        for n in 3 1 2; do (sleep 0.0$n; echo $n > out.$n; exit $n) & pids[$n]=$!; done
        for n in 1 2 3; do wait ${pids[$n]}; echo "job $n ended with $?"; done
        cat out.*
        sleep 60 &
        kill %% && wait %% 2>/dev/null
        echo $?
        coproc CAT { cat; }
        echo "to a coprocess" >&"${CAT[1]}"
        read -r line <&"${CAT[0]}"
        echo "$line"
        """,
        """
        job 1 ended with 1
        job 2 ended with 2
        job 3 ended with 3
        1
        2
        3
        143
        to a coprocess
        """,
    ),
    bash(
        "files are made, found, changed, packed",
        r"""
        set -euo pipefail
        work=$(mktemp -d)
        mkdir -p "$work"/src/{a,b}
        for f in a/x.txt a/y.md b/z.txt; do echo "content of $f" > "$work/src/$f"; done
        cd "$work"
        find . -name '*.txt' -type f | sort
        find src -type f -print0 | sort -z | xargs -0 -n1 basename | paste -sd' '
        sed -i 's/content/conteúdo/; s/ of / de /' src/a/x.txt
        cat src/a/x.txt
        tar czf pack.tar.gz src && mkdir out && tar xzf pack.tar.gz -C out && ls -R out | grep -c txt
        gzip -c src/a/y.md | gunzip | wc -c
        shopt -s globstar nullglob
        echo **/*.md none*
        cp -r src copy && rm -r src && mv copy/b/z.txt . && ln -s z.txt link && ls -1 && readlink link
        stat -c '%s %a' z.txt; chmod 600 z.txt; test -x z.txt || echo "not executable"
        cp pack.tar.gz /workspace/
        """,
        """
        ./src/a/x.txt
        ./src/b/z.txt
        x.txt y.md z.txt
        conteúdo de a/x.txt
        2
        18
        out/src/a/y.md src/a/y.md
        copy
        link
        out
        pack.tar.gz
        z.txt
        z.txt
        19 644
        not executable
        """,
        brings={"pack.tar.gz": lambda data: data.startswith(b"\x1f\x8b")},
    ),
    bash(
        "a strict script stops at the first failure",
        """
        set -euo pipefail
        echo before
        false | true
        echo never
        """,
        "before",
        exit_code=1,
    ),
    bash(
        "an unset variable is an error when it was asked to be",
        """
        set -u
        echo "$UNKNOWN"
        """,
        stderr=re.compile(r".*line 2: UNKNOWN: unbound variable\n"),
        exit_code=1,
    ),
    bash(
        "input is read line by line",
        """
        read -r first
        while IFS=, read -r name age; do echo "$age:$name"; done | sort -n
        echo "header $first"
        """,
        """
        7:Bia
        41:Zoë
        header nome,idade
        """,
        stdin="nome,idade\nZoë,41\nBia,7\n",
    ),
    bash(
        "an unknown command is 127, and a directory 126",
        """
        no-such-program --flag
        echo $?
        /tmp 2>/dev/null
        echo $?
        """,
        """
        127
        126
        """,
        stderr=re.compile(r".*line 1: no-such-program: command not found\n"),
    ),
    bash("an exit code of its own in Bash", "exit 42", exit_code=42),
    bash("Bash ended by a signal", "kill -TERM $$", status=Status.KILLED, exit_code=143, error="SIGTERM"),
    bash(
        "git keeps a history in the workspace",
        """
        set -e
        git config --global user.name Ana
        git config --global user.email ana@localhost
        git init -q -b main .
        echo one > file.txt
        git add file.txt && git commit -q -m "Primeira versão"
        echo two >> file.txt
        git commit -q -am "Second"
        git log --format='%an %s'
        git diff HEAD~1 --stat | tail -1
        git checkout -q -b side && git branch --list | tr -d '\\n'; echo
        git status --short
        git clone -q . /tmp/copy && cat /tmp/copy/file.txt
        """,
        """
        Ana Second
        Ana Primeira versão
         1 file changed, 1 insertion(+)
          main* side
        one
        two
        """,
        needs=("git",),
    ),
    bash(
        "Bash finds the interpreter and its packages",
        """
        python3 -c 'import sys; print(sys.version_info >= (3, 11))'
        python -c 'import numpy; print(numpy.arange(3).sum())'
        echo '[3, 1]' | python3 -m json.tool --compact
        python3 - um dois <<'END'
        import sys
        print(sys.argv)
        END
        cat > script.py <<'END'
        #!/usr/bin/env python3
        print("by its shebang")
        END
        chmod +x script.py && ./script.py
        """,
        """
        True
        3
        [3,1]
        ['-', 'um', 'dois']
        by its shebang
        """,
    ),
    bash(
        "a C program is compiled and run",
        r"""
        cat > hello.c <<'END'
        #include <stdio.h>
        int main(int argc, char **argv) { printf("%d: %s\n", argc, argv[1]); return 3; }
        END
        printf 'hello: hello.c\n\tcc -O1 -o hello hello.c\n' > Makefile
        make -s && ./hello olá; echo $?
        """,
        """
        2: olá
        3
        """,
        needs=("make", "cc"),
    ),
    bash(
        "perl, jq and df",
        """
        perl -le 'print scalar reverse "roma"'
        jq -c '[.[] | {n: .a, twice: (.a * 2)}]' <<< '[{"a": 1}, {"a": 2}]'
        df -P . | wc -l
        """,
        """
        amor
        [{"n":1,"twice":2},{"n":2,"twice":4}]
        2
        """,
        needs=("perl", "jq"),
    ),
    bash(
        "other programs of the host: bc, dates, checksums, encodings",
        """
        echo "scale=5; 22/7" | bc
        date -u -d @86400 '+%Y-%m-%d %H:%M'
        TZ=Asia/Tokyo date -d @0 +%H:%M
        printf redoma | sha256sum | cut -c1-16
        printf 'coração' | base64 | base64 -d; echo
        printf 'a\\tb\\n' | od -An -c | tr -s ' '
        seq 10 | shuf | sort -n | paste -sd+ | bc
        expr 7 \\* 6; printf '%05.2f %x\\n' 3.14159 255
        nproc | grep -qE '^[0-9]+$' && dd if=/dev/zero bs=1k count=4 status=none | wc -c
        timeout 0.1 sleep 60; echo $?
        env -i A=1 env
        """,
        """
        3.14285
        1970-01-02 00:00
        09:00
        fc869b8267bbb8f7
        coração
         a \\t b \\n
        55
        42
        03.14 ff
        4096
        124
        A=1
        """,
        needs=("bc",),
    ),
)

_COMMANDS: tuple[Program, ...] = (
    command("ls shows what was given", ("ls", "-1"), "a.txt\nsub", files={"a.txt": "", "sub/b.txt": ""}),
    command("cat of a file that was given", ("cat", "olá.txt"), "conteúdo", files={"olá.txt": "conteúdo\n"}),
    command("cat of its input", ("cat",), "de\nfora", stdin="de\nfora\n"),
    command(
        "env shows what was asked for and nothing of the host",
        ("env",),
        re.compile(
            r"(?:(?:HOME=/tmp|LANG=C\.UTF-8|PATH=[^\n]*|[A-Z_]+=(?:guest|/bin/bash|/workspace|/tmp)|X=um dois)\n)+"
        ),
        env={"X": "um dois"},
    ),
    command(
        "python with arguments that hold spaces, quotes and accents",
        ("python", "-c", "import sys; print(sys.argv[1:])", "um dois", "três 'quatro'", "日本", "", "$HOME *"),
        "['um dois', \"três 'quatro'\", '日本', '', '$HOME *']",
    ),
    command("python3 is the same interpreter", ("python3", "-c", "import numpy, sys; print(sys.argv)"), "['-c']"),
    command(
        "a program that is not there",
        ("no-such-program", "x"),
        stderr=None,
        exit_code=127,
        error="no-such-program",
    ),
    command("a program that is no program", ("/etc/passwd",), stderr=None, exit_code=126, error="/etc/passwd"),
    command("date in a time zone", ("date", "-d", "@0", "+%H:%M %z"), "21:00 -0300", env={"TZ": "America/Sao_Paulo"}),
    command("id is the guest", ("id",), re.compile(r"uid=1000\(guest\) gid=1000\(guest\)( groups=1000\(guest\))?\n")),
    command("whoami is the guest", ("whoami",), "guest"),
    command(
        "a script by its path", ("sh", "run.sh", "x"), "ran with x", files={"run.sh": "#!/bin/sh\necho ran with $1\n"}
    ),
    command("true", ("true",)),
    command("false", ("false",), exit_code=1),
    command("a shell as a command", ("sh", "-c", 'echo "$0 $1"; exit 5', "zero", "um"), "zero um", exit_code=5),
)

PROGRAMS = (*_SCRIPTS, *_COMMANDS)
