"""Built-in rules about commands that change the machine: privileges, disks, services, users, logs."""

from __future__ import annotations

from .base import EVERYTHING, ask, listed, on_host, refuse, touching

_DISKS = listed("""
    /dev/sd*, /dev/hd*, /dev/vd*, /dev/xvd*, /dev/nvme*, /dev/mmcblk*, /dev/dm-*, /dev/mapper/*, /dev/md*,
    /dev/disk*, /dev/rdisk*, /dev/loop*, /dev/mem, /dev/kmem, /dev/port
""")

_MOUNTS_OF_THE_HOST = tuple(
    f"{option}{path}:*" for option in ("", "-*v", "*=") for path in ("/", "/etc", "/etc/", "/root", "/root/")
)
_ENGINES = ("docker", "podman", "nerdctl")


def _of_engines(words: str) -> tuple[str, ...]:
    """The same commands of every container engine."""
    return tuple(f"{engine} {word}" for engine in _ENGINES for word in listed(words))


PRIVILEGE = (
    ask(
        id="privilege.raise",
        reason="it runs something with another user's rights",
        suggestion="run it as yourself; a sandbox needs no sudo",
        command=("sudo", "su", "doas", "pkexec", "runuser", "sudoedit", "gosu", "run0", "dzdo", "sg"),
        match=("sudo ls", "su - root -c id", "env sudo -n true"),
        not_match=("echo sudo", 'git commit -m "remove sudo"', "grep sudo README.md"),
    ),
    ask(
        id="privilege.namespaces",
        reason="it enters or makes another view of the system",
        suggestion="run the program itself: the sandbox has a view of its own",
        command=listed("nsenter, unshare, chroot, pivot_root, capsh, setcap, setpriv, bwrap, systemd-run, machinectl"),
        match=("chroot /mnt sh", "unshare -r id"),
        not_match=("man chroot",),
    ),
    refuse(
        id="privilege.container",
        reason="it starts a container that holds the host in its hands",
        suggestion="configure it as an executor, without --privileged and the mounts of / and of the Docker socket",
        command=listed("""
            docker run, docker exec, docker create, docker container run, podman run, podman exec, podman create,
            nerdctl run
        """),
        args=(
            "--privileged*",
            *_MOUNTS_OF_THE_HOST,
            *listed("*docker.sock*, --pid=host, --cap-add=*all*, --cap-add=*sys_admin*"),
            "type=bind,*source=/,*",
            "type=bind,*src=/,*",
            "--device=/dev/*",
        ),
        match=(
            "docker run --privileged x",
            "docker run -v /:/host x",
            "docker run -v/:/host x",
            "docker run -v /etc/:/e x",
            "docker run -v /var/run/docker.sock:/s x",
        ),
        not_match=("docker run --rm -v ./data:/data x", "docker ps"),
    ),
)

SYSTEM_STATE = (
    refuse(
        id="disk.format",
        reason="it formats, partitions or wipes a disk",
        suggestion="work on files; a disk is its owner's to format",
        command=listed("""
            mkfs*, mke2fs, mkswap, wipefs, fdisk, sfdisk, gdisk, sgdisk, parted, blkdiscard, hdparm,
            cryptsetup luksformat, pvcreate, vgremove, lvremove, zpool destroy, diskutil erase*
        """),
        match=("mkfs.ext4 /dev/sda1", "wipefs -a /dev/sdb"),
        not_match=("lsblk", "df -h"),
    ),
    refuse(
        id="disk.write",
        reason="it writes to a disk or to memory directly",
        suggestion="write to a file of the project",
        writes=_DISKS,
        match=("dd if=/dev/zero of=/dev/sda", "echo x > /dev/nvme0n1", "cat img | tee /dev/sdb"),
        not_match=("echo x > /dev/null", "ls 2> /dev/stderr", "dd if=a of=b"),
    ),
    ask(
        id="disk.write-unknown",
        reason="it copies raw data to a place that can't be known beforehand",
        suggestion="write the path out: of=image.bin",
        command=("dd",),
        args=("of=$*", "$", "of=/dev/*"),
        unless=r"(.* )?of=/dev/(null|stdout|stderr)( [^\x00]*)?",
        match=('dd if=image of="$disk"',),
        not_match=("dd if=/dev/urandom of=/dev/null count=1", "dd if=a of=b"),
    ),
    refuse(
        id="system.halt",
        reason="it stops the machine",
        suggestion="let the run end by itself",
        command=listed("""
            shutdown, reboot, halt, poweroff, init 0, init 6, telinit, kexec, systemctl poweroff, systemctl reboot,
            systemctl halt, systemctl kexec
        """),
        match=("shutdown -h now", "init 0", "systemctl --force reboot"),
        not_match=("systemctl status nginx", "git init"),
    ),
    refuse(
        id="system.sysrq",
        reason="it gives the kernel orders past every safeguard",
        suggestion="read /proc and /sys; don't write there",
        writes=("/proc/sysrq-trigger", "/proc/sys/*", "/sys/power/*"),
        match=("echo b > /proc/sysrq-trigger",),
        not_match=("cat /proc/meminfo",),
    ),
    refuse(
        id="system.kill-all",
        reason="it kills every process it may",
        suggestion="name the processes by their ids",
        command=("kill",),
        args=("-1",),
        unless=r"-1( [1-9%]\S*)+",
        match=("kill -9 -1", "kill -KILL -- -1"),
        not_match=("kill -1 1234", "kill 4321", "kill -9 99"),
    ),
    ask(
        id="system.kill-by-name",
        reason="it kills every process of a name or a user",
        suggestion="name the processes by their ids",
        command=("killall", "killall5", "pkill -u*", "pkill -9 -u*"),
        match=("killall python", "pkill -u root"),
        not_match=("kill %1",),
    ),
    ask(
        id="system.services",
        reason="it changes which services run",
        suggestion="look with systemctl status",
        command=listed("""
            systemctl stop, systemctl disable, systemctl mask, systemctl restart, systemctl start, systemctl enable,
            systemctl edit, systemctl daemon-reload, service, rc-service, update-rc.d, launchctl
        """),
        match=("systemctl stop sshd", "systemctl --now disable ufw"),
        not_match=("systemctl status sshd",),
    ),
    ask(
        id="system.firewall",
        reason="it changes how the machine filters or routes its network",
        suggestion="look with `ip addr show` or `iptables -L`",
        command=listed("iptables*, ip6tables*, nft, ufw, firewall-cmd, ip route, ip link, ip addr, ifconfig, route"),
        unless=r"(-L|-S|status|list ruleset|-nL|-n -L|(route|link|addr)( (show|list|get)\b[^\x00]*)?)",
        match=("iptables -F", "ufw disable"),
        not_match=("ip addr show", "iptables -L"),
    ),
    ask(
        id="system.mount",
        reason="it changes what is mounted",
        suggestion="look with findmnt",
        command=("mount", "umount", "swapoff", "swapon", "losetup", "fusermount*"),
        unless="(-l|--help|)",
        match=("mount /dev/sda1 /mnt", "umount /data"),
        not_match=("mount", "findmnt"),
    ),
    refuse(
        id="system.kernel",
        reason="it loads or removes code of the kernel",
        suggestion="look with lsmod",
        command=("insmod", "modprobe", "rmmod", "bpftool"),
        match=("insmod evil.ko",),
        not_match=("lsmod",),
    ),
    ask(
        id="system.settings",
        reason="it changes settings of the whole system",
        suggestion="look: sysctl kernel.hostname",
        command=listed("""
            sysctl, setenforce, auditctl, timedatectl set*, hostnamectl set*, update-alternatives, ldconfig,
            dpkg-reconfigure, localectl set*, date -s, hwclock
        """),
        unless=r"(-a|[a-z][a-z0-9_.]*|--version)",
        match=("sysctl -w kernel.randomize_va_space=0", "setenforce 0"),
        not_match=("sysctl kernel.hostname",),
    ),
    ask(
        id="system.users",
        reason="it changes users, groups or passwords",
        suggestion="look with id and getent",
        command=listed("""
            useradd, usermod, userdel, adduser, deluser, groupadd, groupdel, groupmod, passwd, chpasswd, visudo,
            vipw, vigr, chsh, chfn, gpasswd, newusers
        """),
        match=("useradd eve", "echo root:x | chpasswd"),
        not_match=("whoami", "id -u"),
    ),
    ask(
        id="system.schedule",
        reason="it makes something run later, outside this run",
        suggestion="look with crontab -l; run it now instead of later",
        command=("crontab", "at", "batch", "systemd-run", "launchctl load"),
        unless=r"-l",
        match=("crontab -r", "echo x | at now", "crontab jobs.txt"),
        not_match=("crontab -l",),
    ),
    ask(
        id="system.traces",
        reason="it wipes history or logs",
        suggestion="look with history or journalctl",
        command=listed("""
            history -c, history -*c*, history -d, journalctl --vacuum*, journalctl --rotate, unset hist*,
            git reflog expire, git filter-branch, git filter-repo, auditctl -D
        """),
        match=("history -c", "journalctl --vacuum-time=1s", "unset HISTFILE"),
        not_match=("history", "journalctl -u nginx", "git reflog"),
    ),
    ask(
        id="system.history-file",
        reason="it rewrites a shell's history",
        suggestion="leave it to the person whose history it is",
        writes=("*_history", "*/fish_history"),
        match=("> ~/.bash_history", "ln -sf /dev/null ~/.bash_history"),
        not_match=("cat history.txt",),
    ),
)

ON_THE_HOST = (
    on_host(
        id="container.remove",
        reason="it removes containers, images or volumes, with what they hold",
        suggestion="look with docker ps -a, docker images and docker volume ls",
        command=_of_engines("""
            system prune, system reset, volume rm, volume remove, volume prune, container rm, container remove,
            container prune, rm, rmi, image rm, image remove, image prune, builder prune, buildx prune, buildx rm,
            network rm, network remove, network prune, compose rm, stack rm, pod rm, pod prune, swarm leave,
            secret rm, config rm, context rm, plugin rm
        """),
        match=("docker system prune -af --volumes", "docker volume rm data", "docker rm -f web", "podman volume prune"),
        not_match=("docker ps -a", "docker volume ls", "docker logs web"),
    ),
    on_host(
        id="machine.remove",
        reason="it removes a virtual machine, a cluster or a volume, with what it holds",
        suggestion="look at what there is first, with its list or status",
        command=listed("""
            vagrant destroy, minikube delete, kind delete, k3d cluster delete, virsh destroy, virsh undefine,
            lxc delete, incus delete, multipass delete, multipass purge, colima delete, zfs destroy,
            btrfs subvolume delete
        """),
        match=("vagrant destroy -f", "minikube delete"),
        not_match=("vagrant status", "minikube status"),
    ),
    on_host(
        id="container.compose-down",
        reason="it removes the volumes or images of a whole set of containers",
        suggestion="leave out -v and --rmi: the containers go, and what they hold stays",
        command=(*_of_engines("compose down"), "docker-compose down", "docker-compose rm"),
        flags=("-v|--volumes|--rmi",),
        match=("docker compose down -v --remove-orphans", "docker-compose -f x.yml down --volumes"),
        not_match=("docker compose down", "docker compose ps"),
    ),
    on_host(
        id="container.run",
        reason="it runs a program in a container, with whatever of the host that is given",
        suggestion="configure the container as an executor, with the volumes and the network that it needs",
        command=_of_engines("""
            run, exec, create, container run, container exec, container create, compose run, compose exec, cp,
            container cp, machine ssh
        """),
        match=("docker run --rm -v ./data:/data x", "docker exec web rm -rf /data"),
        not_match=("docker ps", "docker build ."),
    ),
    on_host(
        id="container.unknown",
        reason="what the container engine is told to do can't be known beforehand",
        suggestion="write its command out",
        command=_of_engines("$*"),
        match=('docker "$@"',),
        not_match=('docker logs "$name"',),
    ),
    on_host(
        id="system.kill-matching",
        reason="it ends processes by a name or a file, whosever they are",
        suggestion="name the processes by their ids",
        command=("pkill", "killall", "fuser -*k*", "xkill", "skill"),
        match=("pkill -f server", "fuser -k 8080/tcp"),
        not_match=("pgrep server", "fuser 8080/tcp"),
    ),
    on_host(
        id="system.service-state",
        reason="it changes which services run, or how",
        suggestion="look with systemctl status",
        command=listed("""
            systemctl reload*, systemctl try-restart, systemctl kill, systemctl isolate, systemctl revert,
            systemctl link, systemctl set-*, systemctl unmask, systemctl reenable, systemctl preset*, systemctl clean,
            systemctl add-*, systemctl daemon-reexec, systemctl freeze, initctl, supervisorctl, pm2, brew services
        """),
        match=("systemctl --user reload web", "supervisorctl restart all"),
        not_match=("systemctl is-enabled nginx", "systemctl status nginx --no-pager", "systemctl list-units"),
    ),
)


RULES = (
    *touching(*PRIVILEGE, touches=EVERYTHING),
    *touching(*SYSTEM_STATE, touches=("files", "system")),
    *touching(*ON_THE_HOST, touches=("system",)),
)
