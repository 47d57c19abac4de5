# The stub that waits inside a container for a script or a command. POSIX sh; works better in bash (see stub.py). It is
# pid 1. The order is one line, which sets nonce, blocks, outputs, most, large, path, program and the command's words.
mkdir -p /tmp/workspace && cd /tmp/workspace || exit 125
[ -z "$BASH_VERSION" ] || set -m # otherwise a program in the background ignores SIGINT and SIGQUIT
exec 3<&0 4>&2 2>/dev/null
printf 'redoma: ready\n'
IFS= read -r order <&3 || exit 0 # the host closed the connection
l='
'
eval "$order"
# From here on the host sends signals, each after the one before was passed on: a shell can lose one of two at once.
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
outlast() { # an interrupted wait returns the signal that interrupted it; the next wait returns the program's status
    t=
    wait "$p" # no -f: with it, Bash 5.2 sometimes misses the end of a short program
    n=$?
    [ "$s" ] && [ "$n" = 127 ] || s=$n
    if [ "$t" ]; then
        outlast # not a loop: Bash leaves it when the program is stopped
    elif kill -0 "$p"; then # stopped, not ended, although wait returned
        while sleep 0.1 && stopped; do :; done
        outlast
    fi
}
outlast
kill -9 -1 # from here on only this process writes output
say
# An engine that hears of an OOM kill only when the container is gone takes it for any other kill.
[ "$s" != 137 ] || sleep 0.5
[ "$outputs" ] || exit "$s"
# A file too large for the host is replaced by a symlink whose target holds its size. The size is the fifth word that ls
# prints, but GNU's ls fails in gVisor. wc works there, but busybox's wc reads the whole file.
export large
find /tmp/workspace -type f -size +"$most" -exec sh -c 'set -f
for f; do
    set -- $(ls -ldn "$f")
    n=${5:-$(wc -c <"$f")}
    rm -f "$f" && ln -s "$large$n" "$f"
done' sh {} +
tar -c -C /tmp/workspace -f - .
exit "$s"
