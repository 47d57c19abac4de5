# What waits inside a container for a script or a command: POSIX sh, and better where there is a bash (see stub.py).
# It is pid 1. The order is one line, which sets: nonce, blocks, outputs, most, large, path, program and the words of the
# command.
mkdir -p /tmp/workspace && cd /tmp/workspace || exit 125
[ -z "$BASH_VERSION" ] || set -m # else a program in the background would ignore SIGINT and SIGQUIT
exec 3<&0 4>&2 2>/dev/null
printf 'redoma: ready\n'
IFS= read -r order <&3 || exit 0 # the host has let go of us
l='
'
eval "$order"
# From here on signals come, each when the one before was passed on: two at once can be too many for a shell.
p= q= s=
pass() { t=1; if [ "$p" ]; then kill -"$1" "$p"; else q="$q $1"; fi; printf %s+ "$nonce"; }
all='1 2 3 4 5 6 7 8 10 11 12 13 14 15 18 20 21 22 23 24 25 26 27 28 29 30 31'
for n in $all; do trap "pass $n" "$n"; done
trap 't=1; kill -9 -1' 16
printf 'redoma: taken\n'
say() { trap '' $all 16; printf '%s%s\n' "$nonce" "$1"; }
if [ "$blocks" -gt 0 ]; then
    dd bs=10240 count="$blocks" iflag=fullblock <&3 | tar -x -C / -f - || { say '!place its files: they did not fit, or tar failed'; exit 125; }
fi
found=No\ such\ file\ or\ directory
case $program in
*/*) set -f; places=. ;;
*) set -f; IFS=:; places=$path ;;
esac
for place in $places; do
    case $program in */*) file=$program ;; *) file=${place:-.}/$program ;; esac
    [ -e "$file" ] || continue
    if [ -x "$file" ] && [ ! -d "$file" ]; then found=; break; fi
    found=Permission\ denied
done
set +f; unset IFS
case $found in
P*) say "!start $program: $found"; exit 126 ;;
N*) say "!start $program: $found"; exit 127 ;;
esac
"$@" <&3 2>&4 3<&- 4>&- &
p=$!
for n in $q; do kill -"$n" "$p"; done
stopped() { [ -z "$t" ] && grep -q '^State:.T' "/proc/$p/status"; }
outlast() { # a wait that a signal has interrupted gives that signal; the next one what the program came to
    t=
    wait "$p" # no -f, by which Bash 5.2 misses the end of a short program now and then
    n=$?
    [ "$s" ] && [ "$n" = 127 ] || s=$n
    if [ "$t" ]; then
        outlast # no loop, which Bash would leave when the program stops
    elif kill -0 "$p"; then # which is no end, though wait tells it like one
        while sleep 0.1 && stopped; do :; done
        outlast
    fi
}
outlast
kill -9 -1 # nothing but us writes from here on
say
[ "$outputs" ] || exit "$s"
# Of what is too large for the host its size alone is sent, as where a link leads. It is the fifth word of what ls prints,
# but GNU's fails with gVisor; wc would do as well, but busybox's reads the whole file.
export large
find /tmp/workspace -type f -size +"$most" -exec sh -c 'set -f
for f; do
    set -- $(ls -ldn "$f")
    n=${5:-$(wc -c <"$f")}
    rm -f "$f" && ln -s "$large$n" "$f"
done' sh {} +
tar -c -C /tmp/workspace -f - .
exit "$s"
