"""Built-in rules about what commands do to files: removing, changing rights, writing, reading keys."""

from __future__ import annotations

from .base import ask, listed, on_host, refuse, touching, tree

_RECURSIVE = ("-r|-R|--recursive",)
_DELETING = ("--delete|--del|--delete-before|--delete-during|--delete-delay|--delete-after|--delete-excluded",)
_TRY_DIRECTORY = "name a directory of the project, and see what it would remove with `redoma try`"
_STASH = "keep them instead: git stash push"
_UNCOMMITTED = "it drops changes that were never committed"

SYSTEM = tree("""
    /etc, /usr, /bin, /sbin, /lib, /lib32, /lib64, /boot, /sys, /proc, /var/lib, /var/spool, /var/log, /System, /Library
""")
_HOMES = ("/", "~", "/home", "/root", "/var", *SYSTEM)
"""The system and whole home directories."""
_CLIMBING = listed("..*/etc/*, ..*/usr/*, ..*/bin/*, ..*/sbin/*, ..*/boot/*, ..*/lib/*, ..*/root/*")

_STARTUP = tuple(
    f"{where}{name}"
    for where in ("", "*/")
    for name in listed("""
        .ssh, .ssh/*, .bashrc, .bash_profile, .bash_login, .bash_logout, .bash_aliases, .profile, .zshrc, .zshenv,
        .zprofile, .config/fish/*, .config/autostart/*, .config/systemd/*, .gitconfig, .git/hooks/*, .git/config,
        .npmrc, .pypirc, .netrc, .pgpass, .aws/*, .kube/*, .docker/*, .gnupg/*, .inputrc, .vimrc, .pythonrc,
        sitecustomize.py, usercustomize.py, authorized_keys, crontab, crontabs/*, LaunchAgents/*, .vscode/tasks.json,
        .claude/*, .envrc
    """)
)

_WHOLE_DIRECTORIES = listed("""
    ., .., */.., [*], .[*], [*][*], *../[*], ..[*], /home, /home/[*], /Users, /root, /var, /opt, /srv, /mnt, /media,
    /run, /dev, /dev/*, /tmp
""")

_WORLD_WRITABLE = tuple(
    f"{before}{who}{operator}{rights}*"
    for before in ("", "*,")
    for who in ("a", "o", "go", "ugo", "uo", "og", "ogu")
    for operator in "+="
    for rights in ("w", "rw", "xw", "wr")
)

REMOVAL = (
    refuse(
        id="remove.everything",
        outright=True,
        reason="it removes the whole file system or the whole home directory",
        suggestion=_TRY_DIRECTORY,
        command=("rm", "rmdir", "unlink", "trash", "srm"),
        args=("/", "/[*]", "/.[*]", "~", "~root", "~/[*]", "~/.[*]", "--no-preserve-root*"),
        match=(
            "rm -rf /",
            "rm -fr /*",
            "/bin/rm --recursive ~",
            'rm -r -f "/"',
            "rm -rf //",
            "rm -rf /tmp/..",
            "rm -rf $HOME",
        ),
        not_match=("rm -rf build/", "rm -f *.o", "echo 'rm -rf /'", "# rm -rf /", 'git commit -m "rm -rf /"'),
    ),
    refuse(
        id="remove.directory",
        reason="it removes a system directory, or everything where it happens to stand",
        suggestion=_TRY_DIRECTORY,
        command=("rm", "srm"),
        flags=_RECURSIVE,
        args=(*_WHOLE_DIRECTORIES, *SYSTEM),
        match=(
            "rm -rf *",
            "rm -rf .",
            "rm -r ..",
            "rm -rf ./*",
            "rm -rf /etc",
            "rm -Rf /usr/lib",
            "rm -rf ../..",
            "rm -rf /e*",
        ),
        not_match=("rm -rf dist/*", "rm -rf ./build", "rm -rf /tmp/work", "rm *", "rm -rf .cache"),
    ),
    refuse(
        id="remove.nothing-named",
        outright=True,
        reason="it removes recursively without saying what",
        suggestion=_TRY_DIRECTORY,
        command=("rm",),
        flags=_RECURSIVE,
        args=("",),
        match=("rm -rf",),
        not_match=("rm -rf build", "rm --help", "rm"),
    ),
    ask(
        id="remove.unknown",
        reason="it removes recursively, and what it removes can't be known beforehand",
        suggestion="write the directory out, and see what it would remove with `redoma try`",
        command=("rm", "srm"),
        flags=_RECURSIVE,
        args=listed("$, $$*, /$*, ~/$, ~$*, $/[*], $[*], $/.[*], $/..*, $/$*, $ *, -*$*, {}"),
        match=('rm -rf "$dir"', "rm -rf $dir/", 'rm -rf "$dir"/*', "rm -rf /$dir"),
        not_match=("rm -rf build", 'rm -f "$tmp"', 'rm "$tmp"', 'rm -rf "$root/build"'),
    ),
    ask(
        id="remove.home",
        reason="it removes somebody's whole home directory",
        suggestion="leave it to whose home it is",
        command=("rm", "srm"),
        flags=_RECURSIVE,
        args=("/home/*", "/Users/*", "/root/*"),
        unless=r"((-\S*|/(home|Users)/[^/\s]+/[^/\s*]\S*|/root/[^/\s*]\S*|[^/~\x00\s]\S*) ?)+",
        match=("rm -rf /home/ana", "rm -rf /home/ana/*", "rm -rf /Users/ana /home/ana/x"),
        not_match=("rm -rf /home/ana/project/build",),
    ),
    ask(
        id="remove.system-file",
        reason="it removes or moves away files of the system",
        suggestion="name files of the project or of /tmp",
        command=("rm", "rmdir", "unlink", "mv", "shred", "truncate"),
        args=("/", "/[*]", *SYSTEM),
        match=("rm /etc/passwd", "unlink /usr/bin/python3", "mv /etc /tmp/x"),
        not_match=("rm etc/passwd", "mv a b"),
    ),
    ask(
        id="remove.repository",
        reason="it removes a repository's history",
        suggestion="remove working files by their names, or let its owner remove it",
        command=("rm", "srm"),
        flags=_RECURSIVE,
        args=(".git", "*/.git"),
        match=("rm -rf .git", "rm -rf ./project/.git/"),
        not_match=("rm -rf .github-cache",),
    ),
    refuse(
        id="remove.by-find",
        reason="it removes what it finds anywhere in the system",
        suggestion="look first, without -delete",
        command=("find", "fd", "fdfind"),
        flags=("-delete",),
        args=_HOMES,
        match=("find / -delete", "find /etc -name '*.conf' -delete"),
        not_match=("find . -name '*.pyc' -delete", "find build -delete"),
    ),
    ask(
        id="remove.by-find-unknown",
        reason="it removes or runs something on what it finds, starting where can't be known, or at the root",
        suggestion="start from a directory of the project that is written out, and only look",
        command=("find",),
        flags=("-delete|-exec|-execdir|-ok|-okdir",),
        args=("$", "/$*", "/", "~"),
        match=('find "$dir" -delete', "find / -name core -exec rm {} +"),
        not_match=("find . -name '*.txt' -exec grep x {} +",),
    ),
    ask(
        id="remove.by-xargs",
        reason="it removes whatever is named by another program's output",
        suggestion="look at the list first, without removing",
        command=("xargs rm", "xargs unlink", "xargs shred", "parallel rm"),
        match=("find / -print0 | xargs -0 -n 1 rm -f", "ls | xargs rm"),
        not_match=("ls | xargs cat", "find . -name '*.pyc' -delete"),
    ),
    ask(
        id="remove.by-git",
        reason="it makes Git remove or overwrite files of the system or of the whole home directory",
        suggestion="look with git status or git clean -n",
        command=("git clean", "git checkout", "git reset", "git restore", "git rm", "git stash"),
        args=_HOMES,
        match=("git -C / clean -xfd", "git --work-tree=/ checkout -f ."),
        not_match=("git clean -xfd", "git -C sub checkout ."),
    ),
    ask(
        id="remove.by-tar",
        reason="it removes files of the system or of the whole home directory once they are in an archive",
        suggestion="leave out --remove-files",
        command=("tar", "gtar"),
        flags=("--remove-files",),
        args=_HOMES,
        match=("tar --remove-files -cf x.tar /home", "tar cf /dev/null --remove-files /etc/ssl"),
        not_match=("tar -cf x.tar /home", "tar --remove-files -cf x.tar build"),
    ),
    ask(
        id="remove.by-rsync",
        reason="it removes whatever the source doesn't have from the system or from the whole home directory",
        suggestion="leave out --delete",
        command=("rsync",),
        flags=_DELETING,
        writes=_HOMES,
        match=("rsync -a --delete empty/ ~/", "rsync -a --delete-after empty/ /home"),
        not_match=("rsync -a --delete ~/ backup/", "rsync -a src/ ~/"),
    ),
    ask(
        id="remove.shred",
        reason="it destroys files beyond recovery",
        suggestion="use rm on a file of the project",
        command=("shred", "srm", "wipe"),
        match=("shred -u notes.txt",),
        not_match=("echo shred",),
    ),
)

PERMISSIONS = (
    refuse(
        id="permissions.everyone",
        outright=True,
        reason="it lets everybody on the machine change the files (chmod 777)",
        suggestion="give rights to the owner only: chmod u+rwx, or 755 for directories",
        command=("chmod", "install", "mkdir"),
        args=(
            *listed("-m*777, 777, 0777, [1-7]777, 00777, +rwx"),
            *(glob for glob in _WORLD_WRITABLE if "rw" in glob),
        ),
        match=(
            "chmod 777 x",
            "install -m 777 a b",
            "chmod -R 0777 .",
            "chmod a+rwx x",
            "chmod ugo+rwx x",
            "chmod u+x,o+rw x",
        ),
        not_match=(
            "chmod +x run.sh",
            "chmod 644 x",
            "chmod u+rwx x",
            "chmod 755 x",
            "chmod go-rwx x",
            "chmod u=rwx,go=rx x",
        ),
    ),
    ask(
        id="permissions.others-write",
        reason="it lets everybody on the machine write to the files",
        suggestion="give rights to the owner or the group only",
        command=("chmod",),
        args=("[0-7][0-7][2367]", "[0-7][0-7][0-7][2367]", *_WORLD_WRITABLE),
        match=("chmod 666 x", "chmod o+w x"),
        not_match=("chmod 664 x", "chmod 700 x"),
    ),
    ask(
        id="permissions.set-id",
        reason="it makes a program run with the rights of its owner",
        suggestion="leave these bits out: chmod u+x",
        command=("chmod",),
        args=("[2467][0-7][0-7][0-7]", "*[ug]+s*", "+s", "*[ug]+[rwx]*s", "*[ug]=*s*"),
        match=("chmod u+s x", "chmod 4755 x"),
        not_match=("chmod 0755 x", "chmod +x x"),
    ),
    refuse(
        id="permissions.system",
        reason="it changes rights or owners all over the system",
        suggestion="name a directory of the project",
        command=("chmod", "chown", "chgrp", "chattr", "setfacl"),
        flags=("-R|--recursive",),
        args=("/", "/[*]", "~", "/home", "/var", *SYSTEM),
        match=("chown -R me /", "chmod -R 755 /usr"),
        not_match=("chown -R me build",),
    ),
    ask(
        id="permissions.unknown-mode",
        reason="it changes rights to something that can't be known beforehand",
        suggestion="write the mode out",
        command=("chmod $*",),
        match=('chmod "$mode" x', "chmod -v $mode x"),
        not_match=('chmod +x "$file"', 'chmod 644 "$file"'),
    ),
    ask(
        id="permissions.unknown",
        reason="it changes rights or owners recursively, and where can't be known beforehand",
        suggestion="write the directory out",
        command=("chmod", "chown", "chgrp"),
        flags=("-R|--recursive",),
        args=("$", "$/", "/$*", "$/[*]"),
        match=('chmod -R 755 "$dir"',),
        not_match=("chmod -R 755 public", 'chmod +x "$file"'),
    ),
)

WRITES = (
    ask(
        id="write.system",
        reason="it writes to a system directory",
        suggestion="write inside the project or to /tmp",
        writes=(*SYSTEM, *_CLIMBING, "/", "/[!/]*[*?]*"),
        match=(
            "echo x > /etc/hosts",
            "cp a /usr/local/bin/",
            "tee -a /etc/../etc/passwd < x",
            "sed -i s/a/b/ /etc/fstab",
        ),
        not_match=("echo x > out.txt", "cat /etc/hosts", "cp /etc/hosts .", "echo x > /tmp/y", "ls > /dev/null 2>&1"),
    ),
    ask(
        id="write.startup",
        reason="it changes a file that decides what runs later, or who may log in",
        suggestion="leave start-up files, keys and hooks to the person who owns them",
        writes=(*_STARTUP, "~/.*[*?[]*", "*/.s[*?[]*"),
        match=(
            "echo x >> ~/.bashrc",
            "cat k >> ~/.ssh/authorized_keys",
            "cp hook .git/hooks/pre-commit",
            "ln -s x ~/.profile",
        ),
        not_match=("echo x > notes.profile.txt", "cat ~/.bashrc", "echo x > .github/workflows/ci.yml"),
    ),
    ask(
        id="write.root-archive",
        reason="it unpacks files over the system",
        suggestion="unpack into a directory of the project: tar -C build",
        command=("tar", "unzip", "bsdtar", "cpio", "rsync", "7z", "dpkg", "rpm"),
        flags=("-C|--directory|-d|-D|-i|-U|-a",),
        args=("/", *SYSTEM),
        match=("tar -xf x.tar -C /", "unzip x.zip -d /etc"),
        not_match=("tar -xf x.tar -C build", "tar -czf out.tgz src"),
    ),
    ask(
        id="read.credentials",
        reason="it reads keys or passwords",
        suggestion="pass a secret to the run explicitly instead",
        args=listed("""
            /etc/shadow, /etc/gshadow, /etc/sudoers*, */.ssh/id_*, ~/.ssh, */.aws/credentials, */.netrc, */.pgpass,
            */.gnupg/*, */.kube/config, */.docker/config.json, /proc/*/environ, */.git-credentials
        """),
        match=("cat /etc/shadow", "base64 ~/.ssh/id_rsa", "strings /proc/1/environ"),
        not_match=("cat /etc/hostname", "cat ssh/id_notes"),
    ),
)

_DRY_RUN = r"(-C [^\s]+ )?clean( -[dfxXqi]+)*( -[dfxXqi]*n[dfxXqin]*| --dry-run)( [^\x00]*)?"

ON_THE_HOST = (
    on_host(
        id="write.outside",
        reason="it writes, moves or removes files outside the working directory and the project",
        suggestion="work on files of the project or of /tmp, or see what it would do with `redoma try`",
        traits=("files.outside",),
        match=(
            "rm -r /srv/x",
            "mv data ~/x",
            "cp a ../x",
            "tar -xf x.tar -C ~",
            "cd /data && touch x",
            "ln -s /srv d; echo x > d/y",
        ),
        not_match=("rm -r build", "echo x > /tmp/y", "cp ~/x .", "cat /srv/x > /dev/null", 'mv "$tmp" package.json'),
    ),
    on_host(
        id="remove.recursive",
        reason="it removes a directory with everything in it, beyond recovery",
        suggestion="see what it would remove with `redoma try`",
        command=("rm", "srm", "trash"),
        flags=_RECURSIVE,
        match=("rm -rf src", 'rm -r "$target"', "rm -Rf build dist"),
        not_match=("rm x", "rmdir x", "echo rm -r x"),
    ),
    on_host(
        id="remove.matching",
        reason="it removes whatever is there, by no name of its own",
        suggestion="name the files, or see what it would remove with `redoma try`",
        command=("rm", "unlink"),
        args=("[*]", "./[*]", "[*].[*]", ".[*]"),
        match=("rm *", "rm -f ./*"),
        not_match=("rm *.o", "rm -f a.txt"),
    ),
    on_host(
        id="remove.found",
        reason="it removes everything that it finds",
        suggestion="look first, without -delete; or see what it would remove with `redoma try`",
        command=("find",),
        flags=("-delete",),
        match=("find . -delete", "find . -name '*.pyc' -delete"),
        not_match=("find . -name delete",),
    ),
    on_host(
        id="remove.each-found",
        reason="it removes everything that it finds",
        suggestion="look first, without -exec; or see what it would remove with `redoma try`",
        command=("find", "fd", "fdfind"),
        flags=("-exec|-execdir|-ok|-okdir|-x|-X|--exec|--exec-batch",),
        args=("rm", "*/rm", "rm *", "*[!a-z]rm *", "unlink", "*/unlink", "shred", "*/shred"),
        match=("find . -name x -exec rm {} +", "fd x -x rm", "find . -exec sh -c 'rm \"$1\"' _ {} +"),
        not_match=("find . -name rm", "find . -exec ls {} +"),
    ),
    on_host(
        id="remove.mirrored",
        reason="it removes whatever the source doesn't have",
        suggestion="leave out --delete, or see what it would remove with `redoma try`",
        command=("rsync",),
        flags=_DELETING,
        match=("rsync -a --delete src/ dst/",),
        not_match=("rsync -a src/ dst/",),
    ),
    on_host(
        id="git.clean",
        reason="it removes files that Git doesn't track, beyond recovery",
        suggestion="look with git clean -n, or see what it would remove with `redoma try`",
        command=("git clean",),
        unless=_DRY_RUN,
        match=("git clean -fdx", "git -C sub clean -f"),
        not_match=("git clean -n", "git clean -fdn", "git clean --dry-run -fd"),
    ),
    on_host(
        id="git.reset",
        reason=_UNCOMMITTED,
        suggestion=_STASH,
        command=("git reset", "git read-tree"),
        flags=("--hard|--merge|--keep|--reset",),
        match=("git reset --hard HEAD~1", "git -C x reset --hard"),
        not_match=("git reset HEAD file", "git reset --soft HEAD~1"),
    ),
    on_host(
        id="git.checkout",
        reason=_UNCOMMITTED,
        suggestion=_STASH,
        command=("git checkout", "git checkout-index"),
        args=("--", ".", "./", ":/", "[*]", "-f", "-a", "--force", "--ours", "--theirs"),
        match=("git checkout -- .", "git checkout .", "git checkout -f main", "git checkout HEAD~1 -- src/a.py"),
        not_match=("git checkout -b fix", "git checkout main"),
    ),
    on_host(
        id="git.restore",
        reason=_UNCOMMITTED,
        suggestion=_STASH,
        command=("git restore",),
        unless=r"(-C [^\s]+ )?restore (--staged|-S)( [^-\x00\s][^\x00\s]*)*",
        match=("git restore .", "git restore --staged --worktree x"),
        not_match=("git restore --staged x",),
    ),
    on_host(
        id="git.switch",
        reason=_UNCOMMITTED,
        suggestion=_STASH,
        command=("git switch",),
        flags=("-f|--force|--discard-changes|-C|--force-create",),
        match=("git switch -f main",),
        not_match=("git switch main", "git switch -c fix"),
    ),
    on_host(
        id="git.drop-branch",
        reason="it drops a branch that may not be merged anywhere",
        suggestion="git branch -d drops merged ones only",
        command=("git branch",),
        flags=("-d|-D|--delete", "-f|-D|--force"),
        match=("git branch -D fix", "git branch | xargs git branch -D", "git branch -d -f fix"),
        not_match=("git branch -d fix", "git branch", "git branch -a"),
    ),
    on_host(
        id="git.drop",
        reason="it drops work that Git keeps nowhere else",
        suggestion="look with git stash list, git reflog or git worktree list",
        command=listed("""
            git stash drop, git stash clear, git worktree remove, git reflog expire, git reflog delete, git prune,
            git gc --prune*, git update-ref -d, git tag -d, git tag --delete, git rm -*f*, git rm --force,
            git submodule deinit, git filter-branch, git filter-repo, git lfs prune
        """),
        match=("git stash clear", "git stash drop 'stash@{1}'", "git gc --prune=now", "git rm -rf src"),
        not_match=("git stash push -m wip", "git stash list", "git gc", "git tag v1", "git rm a.py"),
    ),
    on_host(
        id="write.user-settings",
        reason="it changes settings that hold outside the project",
        suggestion="change them for the project alone: git config without --global",
        command=listed("npm config set, npm set, yarn config set, pip* config set, pip3 config set, go env -w"),
        match=("npm config set registry x", "pip config set global.index-url x"),
        not_match=("npm config get registry", "pip config list"),
    ),
    on_host(
        id="git.user-settings",
        reason="it changes settings that hold outside the project",
        suggestion="change them for the project alone: leave out --global",
        command=("git config",),
        flags=("--global|--system",),
        unless=r"config (--global|--system) ((--get[a-z-]*|--list|-l|get|list)( [^\x00]*)?|[A-Za-z0-9.-]+)"
        r"|config (--get[a-z-]*|--list|-l|get|list) (--global|--system)( [^\x00]*)?",
        match=("git config --global user.name x", "git config --global --unset a.b"),
        not_match=("git config user.name x", "git config --global user.name", "git config --global --list"),
    ),
    on_host(
        id="git.unknown",
        reason="what Git is told to do can't be known beforehand",
        suggestion="write Git's command out",
        command=("git $*",),
        match=('git "$@"', "git -C sub $cmd"),
        not_match=('git log "$branch"', "git status"),
    ),
)

RULES = touching(*REMOVAL, *PERMISSIONS, *WRITES, *ON_THE_HOST, touches=("files",))
