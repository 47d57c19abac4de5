"""Files that run by way of a variable, an option, a loader or a function that is handed on: bound, or never pinned."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from approval_job import EVIL, Job, found, job_with_scripts

from redoma import Status
from redoma.models import ExecutedFiles

_COMMANDS = r"""
bash --rcfile hook.sh -i
bash -rcfile hook.sh -i
bash -init-file hook.sh -i
bash --rcf hook.sh -i
bash -norc -rcfile hook.sh -i
bash -posix hook.sh
bash -O extglob hook.sh
bash -login
psql --fil hook.sh
psql --fil=hook.sh
psql -X --f hook.sh
git --exec-pa=. status
git --exec-path=. status
make --fil=hook.sh
make --mak hook.sh
make -C sub
make --dir=sub
npm run build
npm --pre sub run build
docker compose -f hook.sh up
docker-compose --fil hook.sh up
env -S 'sh hook.sh'
env -S 'BASH_ENV=hook.sh bash -c true'
env --split-string='sh hook.sh'
env --split='sh hook.sh'
env --sp 'sh hook.sh'
env -iS 'sh hook.sh'
env -iS'sh hook.sh'
env -vS 'sh hook.sh'
env --chd=sub sh hook.sh
env -S '${X} hook.sh'
declare -x BASH_ENV=hook.sh; bash -c true
typeset -x BASH_ENV=hook.sh; bash -c true
readonly -x BASH_ENV=hook.sh; bash -c true
readonly BASH_ENV=hook.sh; export BASH_ENV; bash -c true
declare -gx BASH_ENV=hook.sh; bash -c true
declare -x 'BASH_ENV'='hook.sh'; bash -c true
f() { local -x BASH_ENV=hook.sh; bash -c true; }; f
BASH_ENV=hook.sh; declare -x BASH_ENV; bash -c true
BASH_ENV=hook.sh; typeset -x BASH_ENV; bash -c true
declare -x $'BASH_ENV=hook.sh'; bash -c true
declare -ax X; X=BASH_ENV; declare -x $X=hook.sh; bash -c true
printf -v BASH_ENV %s hook.sh; export BASH_ENV; bash -c true
printf -vBASH_ENV %s hook.sh; export BASH_ENV; bash -c true
n=BASH_ENV; printf -v $n %s hook.sh; export $n; bash -c true
read BASH_ENV < one; export BASH_ENV; bash -c true
read -r BASH_ENV <<EOF; export BASH_ENV; bash -c true
mapfile -t BASH_ENV <<< hook.sh; export BASH_ENV; bash -c true
IFS=, read -r a BASH_ENV <<< x,hook.sh; export BASH_ENV; bash -c true
for BASH_ENV in hook.sh; do export BASH_ENV; bash -c true; done
select BASH_ENV in hook.sh; do export BASH_ENV; bash -c true; break; done <<< 1
export BASH_ENV; BASH_ENV=hook.sh; bash -c true
export "BASH_ENV=hook.sh"; bash -c true
export $(echo BASH_ENV=hook.sh); bash -c true
export $(cat hook.sh); bash -c true
export $(grep -v '^#' hook.sh | xargs); bash -c true
set -a; . ./hook.sh; bash -c true
set -o allexport; BASH_ENV=hook.sh; bash -c true
BASH_ENV+=hook.sh bash -c true
env $(cat hook.sh) ls
xargs -a hook.sh env
echo true | xargs -a hook.sh -I{} bash -c {}
echo true | xargs --arg=hook.sh -I{} bash -c {}
bash -rcfile date -i
bash -init-file date -i
tar -cf x *
tar -cf x $(cat hook.sh)
tar -cf x "$(cat hook.sh)"
cat hook.sh | xargs tar -cf x
rsync -a * host:x
zip x *
curl $(cat hook.sh)
find $(cat hook.sh)
find . -print $(cat hook.sh)
find * -name x
x=$(cat hook.sh); sed "$x" one
x=$(cat hook.sh); sed -n "${x}p" one
x=$(cat hook.sh); sort $x one
x=$(cat hook.sh); awk "$x" one
python3 -X pycache_prefix=sub -c 1
env BASH_ENV=hook.sh sh -c 'bash -c true'
bash <<< '. ./hook.sh'
bash <<< "source hook.sh"
sh -s <<< 'sh hook.sh'
python3 <<< 'exec(open("hook.sh").read())'
python3 - <<< 'import hook'
perl <<< 'do "./hook.sh"'
xargs -a hook.sh sh -c
xargs -a hook.sh -I{} sh -c {}
xargs --arg-file=hook.sh -L1 sh -c
xargs --arg hook.sh sh -c
xargs -a one sh hook.sh
find . -exec sh hook.sh \;
find . -exec sh -c '. ./hook.sh' \;
find . -name 'h*.sh' -exec sh {} \;
find . -name 'h*.sh' -exec {} \;
find sub -execdir ./hook.sh \;
find . -files0-from hook.sh -exec sh {} +
awk -f hook.sh one
awk -fhook.sh one
awk --file=hook.sh one
gawk --fil hook.sh one
gawk -E hook.sh
gawk --exec hook.sh
gawk -i hook.sh 1
gawk -l ./hook.sh 1
awk -v x=1 -f hook.sh one
sed -f hook.sh one
sed -nf hook.sh one
sed -fhook.sh one
sed --file=hook.sh one
sed --fil hook.sh one
sed -n -e p -f hook.sh one
sed -sf hook.sh one
sed -Ef hook.sh one
sed -i.bak -f hook.sh one
perl -I. -Mhook -e 1
perl -I . -mhook -e 1
perl -Mlib=. -Mhook -e 1
perl -x hook.sh
perl -d:hook -e 1
ruby -r ./hook -e 1
ruby -r./hook -e 1
ruby -I. -rhook -e 1
ruby --require=./hook -e 1
node -r ./hook.sh -e 1
node --require ./hook.sh -e 1
node --require=./hook.sh -e 1
node --import ./hook.sh -e 1
node --loader=./hook.sh -e 1
node --env-file=hook.sh -e 1
NODE_OPTIONS='--require ./hook.sh' node -e 1
NODE_OPTIONS=-r./hook.sh node -e 1
NODE_OPTIONS='--import=./hook.sh' npm -v
NODE_OPTIONS='--experimental-config-file=hook.sh' node -e 1
NODE_PATH=. node -e 1
PYTHONSTARTUP=hook.sh python3 -i
PYTHONPATH=sub python3 -c 'import hook'
PYTHONPATH=$PWD/sub python3 -m hook
PYTHONHOME=. python3 -c 1
PYTHONINSPECT=1 python3 -c 1 < hook.sh
PYTHONBREAKPOINT=hook.f python3 -c 'breakpoint()'
PYTHONPLATLIBDIR=x python3 -c 1
PERL5OPT=-Mhook perl -e 1
PERL5LIB=. perl -Mhook -e 1
PERL5DB='do "./hook.sh"' perl -d -e 1
RUBYOPT=-r./hook ruby -e 1
RUBYLIB=. ruby -rhook -e 1
LD_PRELOAD=./hook.sh ls
LD_AUDIT=./hook.sh ls
LD_LIBRARY_PATH=. ls
GLIBC_TUNABLES=x LD_PRELOAD=./hook.sh ls
GCONV_PATH=. iconv -f x -t y one
LOCPATH=. GCONV_PATH=. iconv -l
GIT_SSH=./hook.sh git fetch
GIT_SSH_COMMAND='sh hook.sh' git fetch
GIT_PAGER='sh hook.sh' git log
GIT_EDITOR='sh hook.sh' git commit
GIT_SEQUENCE_EDITOR='sh hook.sh' git rebase -i
GIT_EXTERNAL_DIFF=./hook.sh git diff
GIT_ASKPASS=./hook.sh git fetch
GIT_PROXY_COMMAND=./hook.sh git fetch
GIT_EXEC_PATH=. git status
GIT_TEMPLATE_DIR=. git init
GIT_CONFIG_GLOBAL=hook.sh git status
GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.pager GIT_CONFIG_VALUE_0=./hook.sh git log
GIT_DIR=sub git status
ssh -F hook.sh host
scp -F hook.sh a host:b
scp -Fhook.sh a host:b
scp -q -F hook.sh a host:b
scp -o ProxyCommand='sh hook.sh' a host:b
scp -o 'Include hook.sh' a host:b
scp -oInclude=hook.sh a host:b
scp -o KnownHostsCommand=./hook.sh a host:b
scp -o PKCS11Provider=./hook.sh a host:b
scp -o SecurityKeyProvider=./hook.sh a host:b
scp -o XAuthLocation=./hook.sh a host:b
scp -S ./hook.sh a host:b
rsync -e ./hook.sh a host:b
rsync -ae ./hook.sh a host:b
rsync -e 'ssh -F hook.sh' a host:b
rsync -e 'ssh -o Include=hook.sh' a host:b
rsync --rsh='ssh -F hook.sh' a host:b
rsync --rsync-path=./hook.sh a host:b
RSYNC_RSH=./hook.sh rsync a host:b
tar --use-compress-program=./hook.sh -cf x one
tar --use ./hook.sh -cf x one
tar --use=./hook.sh -cf x one
tar -cI ./hook.sh -f x one
tar -I./hook.sh -cf x one
tar -cf x one -I 'sh hook.sh'
tar --checkpoint-action=exec=./hook.sh --checkpoint=1 -cf x one
tar --checkpoint-a exec=./hook.sh --checkpoint=1 -cf x one
tar --checkpoint=1 --checkpoint-action 'exec=sh hook.sh' -cf x one
tar --to-com=./hook.sh -xf x
tar --rs=./hook.sh -cf h:x one
tar --rm=./hook.sh -cf h:x one
tar --inf=./hook.sh -cf x one
tar --new-=./hook.sh -cf x one
tar cfI x ./hook.sh one
tar -xzf x.tgz -F hook.sh
TAR_OPTIONS='--to-command=./hook.sh' tar -xf x
sort --compress-program ./hook.sh one
sort --compress-p=./hook.sh one
sort --comp ./hook.sh one
split --filter=./hook.sh one
split --fil=./hook.sh one
zip -T -TT ./hook.sh x one
zip --unzip-c ./hook.sh -T x one
ZIPOPT='-T -TT ./hook.sh' zip x one
ZIP='-T -TT ./hook.sh' zip x one
ssh-keygen -t ecdsa-sk -w ./hook.sh -f k
ssh-keygen -Y sign -O resident -D ./hook.sh
install -s --strip-prog=./hook.sh one two
install --strip-prog ./hook.sh -s one two
wget --use-ask=./hook.sh http://127.0.0.1:9/
wget --exec='use_askpass=./hook.sh' http://127.0.0.1:9/
wget --conf=hook.sh http://127.0.0.1:9/
WGETRC=hook.sh wget http://127.0.0.1:9/
SYSTEM_WGETRC=hook.sh wget http://127.0.0.1:9/
curl -qK hook.sh https://127.0.0.1:9
curl -sK hook.sh https://127.0.0.1:9
curl --confi hook.sh https://127.0.0.1:9
CURL_HOME=. curl https://127.0.0.1:9
openssl dgst -engine ./hook.sh one
openssl ts -query -config hook.sh -data one
OPENSSL_CONF=hook.sh openssl version
gpg --exec-pa . --list-keys
gpg --option hook.sh --list-keys
gpg --agent-prog=./hook.sh --list-keys
gpg --home . --list-keys
GNUPGHOME=. gpg --list-keys
rg --pre=./hook.sh x
RIPGREP_CONFIG_PATH=hook.sh rg x
watch 'sh hook.sh'
watch -x sh hook.sh
timeout --sig=KILL 5 sh hook.sh
timeout -s KILL 5 ./hook.sh
nice --adj=5 sh hook.sh
nohup ./hook.sh
setpriv --no-new-privs ./hook.sh
prlimit --nofile=5 ./hook.sh
stdbuf --out=0 sh hook.sh
sudo -u x sh hook.sh
sudo --us x sh hook.sh
sudo -i sh hook.sh
sudo -s ./hook.sh
su -c ./hook.sh
su --comm='sh hook.sh'
su -s ./hook.sh x
su --she=./hook.sh x
flock one sh hook.sh
flock --com 'sh hook.sh' one
busybox awk -f hook.sh one
busybox sed -f hook.sh one
busybox sh hook.sh
busybox find . -exec sh hook.sh \;
busybox env sh hook.sh
toybox sh hook.sh
fd -x sh hook.sh
fd --exec sh hook.sh
fd --exec-batch sh hook.sh
. hook.sh
source ./hook.sh
source /dev/stdin < hook.sh
. /dev/fd/3 3< hook.sh
command source hook.sh
bash hook.sh
bash -- hook.sh
bash -x ./hook.sh
bash -c '. "$0"' hook.sh
bash -c '"$@"' x sh hook.sh
exec bash hook.sh
exec ./hook.sh
trap 'sh hook.sh' EXIT
trap -- '. ./hook.sh' 0
hash -p ./hook.sh date; date
alias date=./hook.sh; shopt -s expand_aliases
mapfile -C '. ./hook.sh' -c1 a < one
readarray -C 'sh hook.sh' a < one
complete -C ./hook.sh x
bind -x '"a":sh hook.sh'
bind -f hook.sh
enable -f ./hook.sh x
jobs -x sh hook.sh
coproc ./hook.sh
PROMPT_COMMAND='sh hook.sh' bash -i
PS1='$(sh hook.sh)' bash -i
ENV=./hook.sh sh -i
ENV=./hook.sh dash -i
BASH_ENV=./hook.sh ./x.sh
BASH_ENV=hook.sh env bash -c true
BASH_ENV='$PWD/hook.sh' bash -c true
BASH_ENV=$(echo hook.sh) bash -c true
BASH_ENV=~/hook.sh HOME=. bash -c true
BASH_FUNC_ls%%='() { sh hook.sh; }' bash -c ls
env 'BASH_FUNC_ls%%=() { sh hook.sh; }' bash -c ls
SHELLOPTS=xtrace PS4='$(sh hook.sh)' bash -c true
INPUTRC=hook.sh bash -i
HISTFILE=hook.sh bash -i
CDPATH=sub; cd sub; ./hook.sh
PATH=$PWD:$PATH hook.sh
PATH=.:$PATH; hook.sh
export PATH=sub:$PATH; hook.sh
date -f hook.sh | sh
sh -c "$(cat hook.sh)"
sh -c "`cat hook.sh`"
sh -c "$(<hook.sh)"
sh $(ls h*.sh)
sh hook.sh | cat
(sh hook.sh) &
if sh hook.sh; then :; fi
! ./hook.sh
time ./hook.sh
[[ -f one ]] && ./hook.sh
case x in x) ./hook.sh;; esac
x=(sh hook.sh); "${x[@]}"
x=sh; $x hook.sh
x='sh hook.sh'; $x
x=hook; . ./$x.sh
eval 'sh hook.sh'
eval sh hook.sh
cp hook.sh /tmp/hook-copy.sh; sh /tmp/hook-copy.sh
install -m755 hook.sh x; ./x
ln hook.sh y; ./y
cat hook.sh one > z; sh z
dd if=hook.sh of=z; sh z
tee z < hook.sh; sh z
head -1 hook.sh | xargs -I{} bash -c {}
sqlite3 db < hook.sh
sqlite3 db '.read hook.sh'
sqlite3 -init hook.sh db
mysql --init-command='source hook.sh'
mysql --defaults-file=hook.sh
pg_dump -d 'service=x' | sh
logger -f hook.sh | sh
less hook.sh
man ./hook.sh
vim -S hook.sh
vim -u hook.sh
python3 hook.sh
python3 -i hook.sh
python3 -m hook
python3 -mhook
python3 -Im hook
python3 -c 'import hook'
python3 -W error::hook.X -c 1
python3 -X importtime hook.sh
python3 -X presite=hook -c 1
python3 -m runpy hook
python3 -m pdb hook.sh
python3 -m cProfile hook.sh
python3 -m trace --trace hook.sh
python3 -m timeit -s 'import hook' 1
python3 -m unittest hook
python3 -m doctest hook.sh
python3 -m code < hook.sh
python3 -m asyncio < hook.sh
python3 -m zipapp hook.sh
python3 -m pydoc hook
python3 -m site
python3 -m idlelib -r hook.sh
python3 -m tkinter
python3 -m venv sub
python3 -m ensurepip
python3 -m compileall .
python3 < hook.sh
python3 /dev/stdin < hook.sh
cat hook.sh | python3 -
python2 hook.sh
pypy3 hook.sh
wget -i hook.sh -O- | sh
kill -0 1 && ./hook.sh
"""

_PYTHON = r"""
os.environ |= {'BASH_ENV': 'hook.sh'}; os.system('bash -c true')
os.environ.update({'BASH_ENV': 'hook.sh'}); os.system('bash -c true')
os.environ.update(BASH_ENV='hook.sh'); os.system('bash -c true')
os.environ.setdefault('BASH_ENV', 'hook.sh'); os.system('bash -c true')
os.environ.__setitem__('BASH_ENV', 'hook.sh'); os.system('bash -c true')
os.environ.__ior__({'BASH_ENV': 'hook.sh'}); os.system('bash -c true')
os.environ['BASH_ENV'] = 'hook.sh'; os.system('bash -c true')
os.environ['BASH_' + 'ENV'] = 'hook.sh'; os.system('bash -c true')
os.environ['SOME_TOOLS_OWN_HOOK'] = 'hook.sh'; os.system('./copied-shell')
os.environb[b'BASH_ENV'] = b'hook.sh'; os.system('bash -c true')
os.environb.update({b'BASH_ENV': b'hook.sh'}); os.system('bash -c true')
os.environb |= {b'BASH_ENV': b'hook.sh'}; os.system('bash -c true')
os.putenv('BASH_ENV', 'hook.sh'); os.system('bash -c true')
os.unsetenv('PATH'); os.system('hook.sh')
del os.environ['PATH']; os.system('hook.sh')
os.environ.pop('PATH'); os.system('hook.sh')
os.environ.clear(); os.system('hook.sh')
e = os.environ; e['BASH_ENV'] = 'hook.sh'; os.system('bash -c true')
e = os.environ; e |= {'BASH_ENV': 'hook.sh'}; os.system('bash -c true')
e = os.environ; e.update(BASH_ENV='hook.sh'); os.system('bash -c true')
from os import environ; environ |= {'BASH_ENV': 'hook.sh'}; os.system('bash -c true')
from os import environ; environ['BASH_ENV'] = 'hook.sh'; os.system('bash -c true')
from os import environ as e; e.update(BASH_ENV='hook.sh'); os.system('bash -c true')
from os import putenv as p; p('BASH_ENV', 'hook.sh'); os.system('bash -c true')
import posix; posix.putenv('BASH_ENV', 'hook.sh'); os.system('bash -c true')
import operator; operator.setitem(os.environ, 'BASH_ENV', 'hook.sh'); os.system('bash -c true')
import operator; operator.ior(os.environ, {'BASH_ENV': 'hook.sh'}); os.system('bash -c true')
def f(e): e['BASH_ENV'] = 'hook.sh'\nf(os.environ); os.system('bash -c true')
getattr(os, 'environ')['BASH_ENV'] = 'hook.sh'; os.system('bash -c true')
vars(os)['environ']['BASH_ENV'] = 'hook.sh'; os.system('bash -c true')
os.environ, x = {'BASH_ENV': 'hook.sh'}, 1; os.system('bash -c true')
[os.environ][0]['BASH_ENV'] = 'hook.sh'; os.system('bash -c true')
for os.environ['BASH_ENV'] in ['hook.sh']: os.system('bash -c true')
os.environ._data[b'BASH_ENV'] = b'hook.sh'; os.system('bash -c true')
import subprocess; subprocess.run(['bash', '-c', '1'], env=os.environ | {'BASH_ENV': 'hook.sh'})
import subprocess; subprocess.run(['bash', '-c', '1'], env=dict(os.environ, BASH_ENV='hook.sh'))
import subprocess; subprocess.run(['bash', '-c', '1'], env={**os.environ, 'BASH_ENV': 'hook.sh'})
import subprocess; e = os.environ.copy(); e['BASH_ENV'] = 'hook.sh'; subprocess.run(['bash', '-c', '1'], env=e)
import subprocess; subprocess.run(['bash', '-c', '1'], **{'env': {'BASH_ENV': 'hook.sh'}})
import subprocess; n = None; subprocess.Popen(['bash', '-c', '1'], -1, n, n, n, n, n, 1, 0, n, {'BASH_ENV': 'hook.sh'})
os.execve('/bin/bash', ['bash', '-c', '1'], {'BASH_ENV': 'hook.sh'})
os.execvpe('bash', ['bash', '-c', '1'], {'BASH_ENV': 'hook.sh'})
os.execle('/bin/bash', 'bash', '-c', '1', {'BASH_ENV': 'hook.sh'})
os.spawnve(os.P_WAIT, '/bin/bash', ['bash', '-c', '1'], {'BASH_ENV': 'hook.sh'})
os.posix_spawn('/bin/bash', ['bash', '-c', '1'], {'BASH_ENV': 'hook.sh'})
sys.path += ['sub']; import hook
sys.path[:0] = ['sub']; import hook
sys.path[0] = 'sub'; import hook
sys.path = ['sub']; import hook
sys.path = ['sub', *sys.path]; import hook
sys.path.insert(0, 'sub'); import hook
sys.path.append('sub'); import hook
sys.path.extend(['sub']); import hook
sys.path.__iadd__(['sub']); import hook
sys.path.__setitem__(0, 'sub'); import hook
sys.path.reverse(); import hook
from sys import path; path += ['sub']; import hook
from sys import path as p; p[:0] = ['sub']; import hook
p = sys.path; p += ['sub']; import hook
os.sys.path.insert(0, 'sub'); import hook
os.sys.path += ['sub']; import hook
import bisect; bisect.insort(sys.path, 'sub'); import hook
for sys.path in [['sub']]: import hook
sys.meta_path.insert(0, X()); import hook
sys.meta_path[:0] = [X()]; import hook
sys.meta_path += [X()]; import hook
sys.meta_path = [X()]; import hook
sys.path_hooks.insert(0, X); import hook
sys.path_hooks += [X]; import hook
sys.modules['json'] = X; import json
sys.modules.update(json=X); import json
sys.modules |= {'json': X}; import json
del sys.modules['json']; import json
__path__ = ['sub']; from . import hook
__path__.append('sub'); from . import hook
import json; json.__path__.insert(0, 'sub'); import json.hook
import json; json.__path__ = ['sub']; import json.hook
import json; json.__path__ += ['sub']; from json import hook
import encodings; encodings.__path__.append('sub'); 'x'.encode('hook')
__builtins__.__import__ = X; import hook
import builtins; builtins.__import__ = X; import hook
import ctypes; ctypes.cdll['./hook.sh']
import ctypes; ctypes.cdll.hook
import ctypes; ctypes.cdll.hook.f()
import ctypes; getattr(ctypes.cdll, './hook.sh')
import ctypes; ctypes.cdll.LoadLibrary('./hook.sh')
import ctypes; ctypes.CDLL('./hook.sh')
import ctypes; ctypes.PyDLL('./hook.sh')
import ctypes; ctypes.pydll['./hook.sh']
import ctypes; ctypes.pydll.LoadLibrary('./hook.sh')
import ctypes; ctypes.LibraryLoader(ctypes.CDLL)['./hook.sh']
import ctypes as c; f = c.CDLL; f('./hook.sh')
from ctypes import CDLL; CDLL('./hook.sh')
from ctypes import cdll; cdll['./hook.sh']
from ctypes import cdll as c; c.hook
from ctypes import *; cdll['./hook.sh']
import _ctypes; _ctypes.dlopen('./hook.sh', 2)
import ctypes; list(map(ctypes.CDLL, ['./hook.sh']))
import ctypes\nclass L(ctypes.CDLL): pass\nL('./hook.sh')
import ctypes; ctypes.pythonapi.PyRun_SimpleString(open('hook.sh', 'rb').read())
import importlib.machinery; importlib.machinery.SourceFileLoader('x', 'hook.sh').load_module()
import importlib.machinery as m; m.SourceFileLoader('x', 'hook.sh').load_module()
import importlib.machinery as m; m.ExtensionFileLoader('x', './hook.sh').load_module()
import importlib.machinery as m; m.SourcelessFileLoader('x', 'hook.sh').load_module()
import importlib.machinery as m; m.FileFinder('sub', (m.SourceFileLoader, ['.py'])).find_spec('hook')
import importlib.machinery as m; m.PathFinder.find_spec('hook', ['sub']).loader.load_module()
import importlib.machinery as m; m.ModuleSpec('x', m.SourceFileLoader('x', 'hook.sh'))
import importlib.machinery as m; m.SOURCE_SUFFIXES.append('.sh'); import hook
import importlib.util as u; u.spec_from_file_location('x', 'hook.sh').loader.load_module()
import importlib.util as u; u.find_spec('hook').loader.load_module()
import importlib.util as u; u.spec_from_loader('x', X())
import importlib._bootstrap_external as b; b.SourceFileLoader('x', 'hook.sh').load_module()
import _frozen_importlib_external as b; b.SourceFileLoader('x', 'hook.sh').load_module()
import _imp; _imp.create_dynamic(X)
import imp; imp.load_source('x', 'hook.sh')
import importlib; importlib.import_module('hook', 'x')
import importlib; importlib.import_module(input())
import importlib; importlib.__import__('hook')
import importlib; list(map(importlib.import_module, ['hook']))
__import__('hook')
list(map(__import__, ['hook']))
__loader__.load_module('hook')
__spec__.loader.load_module('hook')
import json; json.__loader__.__class__('x', 'hook.sh').load_module()
import json; type(json.__loader__)('x', 'hook.sh').load_module()
import json; json.__spec__.loader.__class__('x', 'hook.sh').load_module()
import inspect; inspect.importlib.machinery.SourceFileLoader('x', 'hook.sh').load_module()
import runpy; runpy.run_path('hook.sh')
import runpy; runpy.run_module('hook')
import runpy; runpy._run_module_as_main('hook')
import runpy as r; f = r.run_path; f('hook.sh')
from runpy import run_path; run_path('hook.sh')
from runpy import *; run_path('hook.sh')
import runpy; list(map(runpy.run_path, ['hook.sh']))
import runpy, threading; threading.Thread(target=runpy.run_path, args=('hook.sh',)).start()
import zipimport; zipimport.zipimporter('hook.sh').load_module('x')
import zipimport; list(map(zipimport.zipimporter, ['hook.sh']))
import pkgutil; pkgutil.get_importer('sub').find_spec('hook').loader.load_module()
import pkgutil; pkgutil.ImpImporter('sub')
import pkgutil; list(pkgutil.walk_packages(['sub']))
import pkgutil; pkgutil.find_loader('hook').load_module()
import pkgutil; pkgutil.extend_path(['sub'], 'x')
exec(open('hook.sh').read())
exec(compile(open('hook.sh').read(), 'x', 'exec'))
eval(open('hook.sh').read())
from pathlib import Path; exec(Path('hook.sh').read_text())
exec(*[open('hook.sh').read()])
list(map(exec, [open('hook.sh').read()]))
list(map(eval, open('hook.sh')))
f = exec; f(open('hook.sh').read())
[exec][0](open('hook.sh').read())
{'f': exec}['f'](open('hook.sh').read())
(exec if 1 else print)(open('hook.sh').read())
(lambda f: f(open('hook.sh').read()))(exec)
import functools; functools.partial(exec, open('hook.sh').read())()
import functools; functools.reduce(lambda a, f: f(a), [exec], open('hook.sh').read())
import atexit; atexit.register(exec, open('hook.sh').read())
import builtins; builtins.exec(open('hook.sh').read())
import builtins as b; getattr(b, 'ex' + 'ec')(open('hook.sh').read())
getattr(__builtins__, 'exec')(open('hook.sh').read())
__builtins__.__dict__['exec'](open('hook.sh').read())
vars(__builtins__)['exec'](open('hook.sh').read())
globals()['__builtins__'].exec(open('hook.sh').read())
print.__self__.exec(open('hook.sh').read())
getattr(print.__self__, 'exec')(open('hook.sh').read())
().__class__.__base__.__subclasses__()[100].__init__.__globals__['sys'].modules['os'].system('sh hook.sh')
[c for c in object.__subclasses__() if c.__name__ == 'Popen'][0]('sh hook.sh', shell=True)
import types; types.FunctionType(compile(open('hook.sh').read(), '', 'exec'), {})()
import types, marshal; types.FunctionType(marshal.load(open('hook.sh', 'rb')), {})()
import codeop; codeop.compile_command(open('hook.sh').read())
import code; code.InteractiveInterpreter().runsource(open('hook.sh').read())
import code; code.interact(readfunc=open('hook.sh').readline)
import bdb; bdb.Bdb().run(open('hook.sh').read())
import pdb; pdb.run(open('hook.sh').read())
import pdb; pdb.Pdb().runcall(X)
import profile; profile.Profile().run(open('hook.sh').read())
import cProfile; cProfile.Profile().run(open('hook.sh').read())
import cProfile as c; c.Profile().runctx(open('hook.sh').read(), {}, {})
import timeit; timeit.timeit(open('hook.sh').read())
import timeit; timeit.Timer(open('hook.sh').read()).timeit()
import trace; trace.Trace().runctx(open('hook.sh').read())
import doctest; doctest.run_docstring_examples(open('hook.sh').read(), {})
import doctest; doctest.DocTestParser().get_doctest(open('hook.sh').read(), {}, '', '', 0)
import unittest; unittest.TestProgram(module='hook')
import unittest.loader; unittest.loader.defaultTestLoader.loadTestsFromNames(['hook'])
import pydoc; pydoc.importfile('hook.sh')
import pydoc; pydoc.render_doc('hook')
import pydoc; pydoc.pipepager('x', 'sh hook.sh')
import webbrowser; webbrowser.GenericBrowser('./hook.sh').open('x')
import mailcap; mailcap.findmatch(mailcap.getcaps(), 'x/y')
import cgitb, inspect; inspect.getmodule(X)
import pickle; pickle.Unpickler(open('hook.sh', 'rb')).load()
import pickle as p; p.load(open('hook.sh', 'rb'))
from pickle import load as l; l(open('hook.sh', 'rb'))
import pickle\nclass U(pickle.Unpickler): pass\nU(open('hook.sh', 'rb')).load()
import _pickle; _pickle.load(open('hook.sh', 'rb'))
import _pickle; list(map(_pickle.load, [open('hook.sh', 'rb')]))
import pickle; list(map(pickle.loads, [open('hook.sh', 'rb').read()]))
import pickle; pickle._loads(open('hook.sh', 'rb').read())
import pickletools, pickle; pickle._Unpickler(open('hook.sh', 'rb')).load()
import marshal; exec(marshal.load(open('hook.sh', 'rb')))
import shelve; shelve.DbfilenameShelf('hook.sh')
import dbm, shelve; shelve.Shelf(dbm.open('hook'))['x']
import logging.config; logging.config.dictConfig({'()': 'hook.f'})
import logging.config as c; c.fileConfig('hook.sh')
import logging.config; logging.config.DictConfigurator({}).configure()
import logging.config; logging.config.listen(9)
import multiprocessing; multiprocessing.set_executable('./hook.sh')
import multiprocessing.spawn as s; s.set_executable('./hook.sh')
import multiprocessing as m; m.get_context('spawn').set_executable('./hook.sh')
import multiprocessing.connection as c; c.Client('/tmp/x').recv()
sys.executable = './hook.sh'; import multiprocessing
import subprocess; subprocess.run([sys.executable, 'hook.sh'])
import sqlite3; sqlite3.connect('db').executescript(open('hook.sh').read())
import sqlite3; sqlite3.connect('db').execute(open('hook.sh').read())
import sqlite3; c = sqlite3.connect('db').cursor(); c.execute(open('hook.sh').read())
import sqlite3; c = sqlite3.connect('db'); [c.execute(s) for s in open('hook.sh').read().split(';')]
import sqlite3; c = sqlite3.connect('db'); c.enable_load_extension(1); c.execute("select load_extension('./hook.sh')")
import sqlite3; c = sqlite3.connect('db'); f = c.load_extension; f('./hook.sh')
import sqlite3; c = sqlite3.connect('db'); getattr(c, 'load_extension')('./hook.sh')
import readline; readline.read_init_file('hook.sh')
import site; site.addsitedir('sub'); import hook
import site; site.addpackage('sub', 'hook.pth', None)
import site; site.main()
import os; list(map(os.system, ['sh hook.sh']))
import os, threading; threading.Thread(target=os.system, args=('sh hook.sh',)).start()
import os, atexit; atexit.register(os.system, 'sh hook.sh')
import subprocess, threading; threading.Thread(target=subprocess.run, args=(['sh', 'hook.sh'],)).start()
import subprocess, functools; functools.partial(subprocess.run, ['sh', 'hook.sh'])()
import subprocess; (subprocess.run)(['sh', 'hook.sh'])
import subprocess; [subprocess.run][0](['sh', 'hook.sh'])
import subprocess; {1: subprocess.call}[1](['sh', 'hook.sh'])
import subprocess; subprocess.run.__call__(['sh', 'hook.sh'])
import subprocess; getattr(subprocess, input())(['sh', 'hook.sh'])
import subprocess as s\nclass P(s.Popen): pass\nP(['sh', 'hook.sh'])
import concurrent.futures as c, os; c.ThreadPoolExecutor().submit(os.system, 'sh hook.sh')
import asyncio, os; asyncio.to_thread(os.system, 'sh hook.sh')
import asyncio; asyncio.get_event_loop().subprocess_exec(X, './hook.sh')
import asyncio; asyncio.new_event_loop().subprocess_shell(X, 'sh hook.sh')
import _posixsubprocess; _posixsubprocess.fork_exec(['./hook.sh'])
import posix; posix.system('sh hook.sh')
import posix; posix.execv('./hook.sh', ['x'])
import pty; pty.spawn(['sh', 'hook.sh'])
import pty; list(map(pty.spawn, ['./hook.sh']))
import os; os.popen('sh hook.sh')
import os; os.spawnlp(os.P_WAIT, 'sh', 'sh', 'hook.sh')
import os; os.chdir('sub'); os.system('sh hook.sh')
import os; os.fchdir(os.open('sub', 0)); import hook
import os; list(map(os.chdir, ['sub'])); os.system('./hook.sh')
import contextlib, os\nwith contextlib.chdir('sub'): os.system('./hook.sh')
import os; os.chroot('.'); os.system('/hook.sh')
import os; os.symlink('hook.sh', 'x'); os.system('sh x')
import shutil, os; shutil.copy('hook.sh', 'x'); os.system('sh x')
import shutil, os; shutil.copyfile('hook.sh', 'made.py'); import made
import os; open('x', 'w').write(open('hook.sh').read()); os.system('sh x')
from pathlib import Path; Path('x').write_text(Path('hook.sh').read_text()); os.system('sh x')
import signal; signal.signal(2, exec)
import sched, os; sched.scheduler().enter(1, 1, os.system, ('sh hook.sh',))
import xml.etree.ElementTree as e; e.parse('hook.sh'); import hook
import distutils.spawn; distutils.spawn.spawn(['sh', 'hook.sh'])
import setuptools.sandbox; setuptools.sandbox.run_setup('hook.sh', [])
import pip; pip.main(['install', '.'])
import pytest; pytest.main(['hook.sh'])
import nox, invoke
import git; git.Repo('.').git.status()
import IPython; IPython.start_ipython(['hook.sh'])
import nosuchmodule; nosuchmodule.run('hook.sh')
import lib2to3.main; lib2to3.main.main('hook')
import yaml; yaml.load(open('hook.sh'), Loader=yaml.UnsafeLoader)
import yaml; yaml.load_all(open('hook.sh'), yaml.Loader)
import yaml; yaml.unsafe_load_all(open('hook.sh'))
import yaml; yaml.full_load_all(open('hook.sh'))
import yaml; yaml.UnsafeLoader(open('hook.sh')).get_data()
import numpy; numpy.load('hook.sh', None, True)
import numpy as np; np.lib.npyio.load('hook.sh', allow_pickle=True)
import numpy; numpy.ctypeslib.load_library('hook', '.')
import pandas as pd; pd.read_pickle('hook.sh')
import pandas; pandas.io.pickle.read_pickle('hook.sh')
import pandas; pandas.eval(open('hook.sh').read())
import pandas; pandas.DataFrame().query(open('hook.sh').read())
import pandas; pandas.read_hdf('hook.sh')
"""

_PLAIN_HOME = {
    "scp one host:x": ".ssh/config",
    "curl https://127.0.0.1:9": ".curlrc",
    "wget https://127.0.0.1:9": ".wgetrc",
    "gpg --list-keys": ".gnupg/gpg.conf",
    "mysqldump db": ".my.cnf",
}


def _cases() -> list[tuple[str, ...]]:
    commands = [("bash text", line) for line in _COMMANDS.strip().splitlines()]
    lines = (line.replace("\\n", "\n") for line in _PYTHON.strip().splitlines())
    return commands + [("python3", "-c", f"import os, sys\n{line}") for line in lines]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = job_with_scripts(tmp_path)
    made.write("one", "1\n")
    for name in ("hook.sh", "hook.py", "sub/hook.sh", "sub/hook.py", "date"):
        made.write(name, "one\n")
    shutil.copy("/bin/bash", made.place / "copied-shell")
    return made


@pytest.mark.parametrize("command", _cases(), ids=lambda words: words[-1].removeprefix("import os, sys\n")[:90])
def test_what_runs_a_file_is_bound_to_it_or_can_not_be_pinned(job: Job, command: tuple[str, ...]) -> None:
    fields = {"code": command[1], "argv": (), "language": "bash"} if command[0] == "bash text" else {}
    before = found(job.place, *command, **fields)
    for name in ("hook.sh", "hook.py", "sub/hook.sh", "sub/hook.py", "date"):
        job.write(name, "another\n")
    assert before.unbound or before.files != found(job.place, *command, **fields).files


_IMPORTS = {
    "of the package above": (("-m", "pkg.sub.a"), "pkg/sub/a.py", "from ..helper import x", "pkg/helper.py"),
    "of this package": (("-m", "pkg.sub.a"), "pkg/sub/a.py", "from . import helper", "pkg/sub/helper.py"),
    "by its name and package": (("x.py",), "x.py", "import importlib; importlib.import_module('.c', 'b')", "b/c.py"),
    "beside the script": (("app/main.py",), "app/lib/x.py", "import util", "app/util.py"),
    "of a package beside the script": (("app/main.py",), "app/lib/x.py", "from lib import y", "app/lib/y.py"),
}


@pytest.mark.parametrize(("words", "where", "line", "file"), _IMPORTS.values(), ids=_IMPORTS)
def test_so_is_a_module_wherever_it_is_imported_from(
    job: Job, words: tuple[str, ...], where: str, line: str, file: str
) -> None:
    for name in ("pkg/__init__.py", "pkg/sub/__init__.py", "b/__init__.py", "app/lib/__init__.py"):
        job.write(name, "")
    job.write("app/main.py", "import lib.x\n")
    job.write(where, f"{line}\n")
    job.write(file, "x = 1\n")
    before = found(job.place, "python3", *words)
    job.write(file, "x = 2\n")
    assert before.unbound == ()
    assert before.files != found(job.place, "python3", *words).files


@pytest.mark.parametrize(("line", "file"), _PLAIN_HOME.items())
def test_so_are_the_settings_in_its_home(job: Job, line: str, file: str) -> None:
    home = job.place / "home"
    (home / file).parent.mkdir(parents=True)
    given = {"argv": tuple(line.split()), "env": {"HOME": str(home)}}
    before = found(job.place, **given)
    (home / file).write_text("x\n")
    assert before.files != found(job.place, **given).files


_ORDINARY = r"""
import json; print(json.dumps(dict(os.environ)))
print(os.environ['HOME'], os.environ.get('LANG'), 'PATH' in os.environ, os.getenv('TZ'))
for name in os.environ: print(name)
for name, value in sorted(os.environ.items()): print(name, value)
print(sys.argv, sys.version, sys.platform); sys.exit(0)
import subprocess; subprocess.run(['ls', '-l'], check=True, env={**os.environ, 'LC_ALL': 'C'})
import subprocess; subprocess.run(['./x.sh'], env=os.environ)
import subprocess; print(subprocess.check_output(['date']).decode())
import csv, pathlib, re; print([row for row in csv.reader(pathlib.Path('one').open())])
import sqlite3; sqlite3.connect('db').execute('insert into t values (?)', (1,))
import sqlite3; c = sqlite3.connect('db'); c.execute('delete from t where day < ?', (3,)); c.commit()
import datetime as d; print(d.date.today())
import logging; logging.basicConfig(level=logging.INFO); logging.info('x')
import shutil, tempfile; shutil.copy('one', tempfile.mkdtemp())
import pickle; pickle.dump([1], open('out', 'wb'))
import hashlib; print(hashlib.sha256(open('one', 'rb').read()).hexdigest())
import urllib.request; print(urllib.request.urlopen('https://example.org').read())
import smtplib, email.message; smtplib.SMTP('localhost').send_message(email.message.EmailMessage())
import argparse; argparse.ArgumentParser().parse_args()
import importlib; importlib.import_module('json')
from concurrent.futures import ThreadPoolExecutor; print(list(ThreadPoolExecutor().map(len, ['a'])))
import threading; threading.Thread(target=print, args=(1,)).start()
import helper
try:\n    import tomllib\nexcept ImportError:\n    pass
import requests; requests.get('https://example.org').json()
import yaml; print(yaml.safe_load(open('one')))
import numpy as np; print(np.mean([1, 2]))
class A:\n    def __init__(self): self.path = 1\nA().path = 2
"""


@pytest.mark.parametrize("line", _ORDINARY.strip().splitlines())
def test_ordinary_programs_can_be_pinned(job: Job, line: str) -> None:
    text = "import os, sys\n" + line.replace("\\n", "\n")
    assert found(job.place, "python3", "-c", text).unbound == ()


_RUNNING = [
    ("bash text", "declare -x BASH_ENV=hook.sh; bash -c true"),
    ("bash text", "bash -rcfile hook.sh -i < /dev/null 2> /dev/null"),
    ("bash text", "env -S 'sh hook.sh'"),
    ("bash text", "xargs -a one sh hook.sh"),
    ("bash text", "tar --use './hook.sh' -cf - one"),
    ("bash text", "sort --comp ./hook.sh one; sh hook.sh"),
    ("python3", "-c", "import os\nos.environ |= {'BASH_ENV': 'hook.sh'}\nos.system('bash -c true')"),
    ("python3", "-c", "import os\nos.environb[b'BASH_ENV'] = b'hook.sh'\nos.system('bash -c true')"),
    ("python3", "-c", "import sys\nsys.path = ['sub', *sys.path]\nimport hook"),
    ("python3", "-c", "import os\nos.sys.path[:0] = ['sub']\nimport hook"),
    ("python3", "-c", "import os, threading\nthreading.Thread(target=os.system, args=('sh hook.sh',)).start()"),
    ("python3", "-c", "import inspect\ninspect.importlib.machinery.SourceFileLoader('x', 'sub/hook.py').load_module()"),
    ("python3", "-c", "import json\ntype(json.__loader__)('x', 'sub/hook.py').load_module()"),
]


@pytest.mark.parametrize("command", _RUNNING, ids=lambda words: words[-1][:70])
async def test_a_changed_file_does_not_run_under_a_pin(
    job: Job, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(word: str) -> None:
        job.write("hook.sh", EVIL.replace("evil", word))
        job.write("sub/hook.py", f"print({word!r})\n" + "#" * (word == "evil"))  # by size, Python sees the change

    write("good")
    with monkeypatch.context() as blind:
        blind.setattr("redoma.pipeline.executed_files.find", lambda *_, **__: ExecutedFiles())
        assert "good\n" in (await job.pin(*command, requester="eve")).stdout
        write("evil")
        assert "evil\n" in (await job.run(*command, label="job", requester="eve")).stdout
    write("good")
    pinned = await job.pin(*command)
    assert pinned.status is not Status.DENIED or "can't be pinned" in (pinned.error or "")
    write("evil")
    result = await job.run(*command, label="job", wait=False)
    assert result.status in (Status.DENIED, Status.PENDING)  # an alarm, or a new question
    assert result.stdout == ""
