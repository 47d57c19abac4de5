"""Attacks on the network: listeners of the host, by every possible way, and sockets of rarely reviewed families."""

from __future__ import annotations

from jail_attack import NATIVE, REACHES, SYSCALLS, Attack, only_with_a_route, only_with_ipv6, without

_CONNECT = """
import socket
with socket.socket({family}, {kind}) as client:
    client.settimeout(5 if client.type == socket.SOCK_DGRAM else 20)
    client.connect({address})
    {send}
    print(client.recv(100).decode())
"""
_STREAM, _DATAGRAM = "socket.SOCK_STREAM", "socket.SOCK_DGRAM"
_NET = without("net")

REACHING = [
    Attack(
        name="connects to a listener on the host's loopback",
        code=_CONNECT.format(family="socket.AF_INET", kind=_STREAM, address="('127.0.0.1', T.tcp)", send=""),
        control=_NET,
    ),
    Attack(
        name="connects to a listener on the host's loopback over IPv6",
        code=_CONNECT.format(family="socket.AF_INET6", kind=_STREAM, address="('::1', T.tcp6)", send=""),
        control=_NET,
        absent=only_with_ipv6,
    ),
    Attack(
        name="connects to a listener of the host from Bash",
        language="bash",
        code="exec 3<>/dev/tcp/127.0.0.1/$tcp && cat <&3",
        control=_NET,
    ),
    Attack(
        name="sends a datagram to the host",
        code=_CONNECT.format(
            family="socket.AF_INET", kind=_DATAGRAM, address="('127.0.0.1', T.udp)", send="client.send(b'x')"
        ),
        control=_NET,
    ),
    Attack(
        name="asks a name server of the host",
        code=r"""
import socket, struct
query = struct.pack('>HHHHHH', 4711, 0x0100, 1, 0, 0, 0) + b'\x06secret\x04host\x00' + struct.pack('>HH', 16, 1)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
    resolver.settimeout(5)
    resolver.sendto(query, ('127.0.0.1', T.dns))
    answer = resolver.recv(2048)
    print(answer[-answer[len(query) + 12]:].decode())
""",
        control=_NET,
    ),
    Attack(
        name="connects to a socket of the host by its path",
        code=_CONNECT.format(family="socket.AF_UNIX", kind=_STREAM, address="T.unix", send=""),
        control=NATIVE,
    ),
    Attack(
        name="connects to an abstract socket of the host",
        code=_CONNECT.format(family="socket.AF_UNIX", kind=_STREAM, address="chr(0) + T.abstract", send=""),
        control=without("net", "landlock"),
    ),
    Attack(
        name="is reached by a client of the host",
        code="""
import socket
with socket.create_server(('127.0.0.1', T.knock)) as listener:
    listener.settimeout(5)
    print(listener.accept()[0].recv(100))
    breach()
""",
        control=_NET,
    ),
    Attack(
        name="takes a port that a program of the host listens on",
        # In its own network the port is free, and taking it does no harm: then nothing is refused.
        code="""
import errno, socket
try:
    socket.socket().bind(('127.0.0.1', T.tcp))
except OSError as error:
    if error.errno == errno.EADDRINUSE: breach()
""",
        control=_NET,
    ),
    Attack(
        name="sees the host's network interfaces",
        code="""
import socket
if os.readlink('/proc/self/ns/net') == T.ns_net or len(socket.if_nameindex()) > 1: breach()
""",
        control=_NET,
    ),
    Attack(
        name="sees the host's listeners in /proc",
        code="""
for table in ('tcp', 'tcp6', 'udp', 'unix'):
    text = open(f'/proc/self/net/{table}').read()
    if f':{T.tcp:04X} ' in text or T.abstract in text: breach(table)
""",
        control=without("net", "proc"),
    ),
    Attack(
        name="finds a way out of its network",
        absent=only_with_a_route,
        code="""
import socket
for address in ('10.0.0.1', '192.168.1.1', '169.254.169.254', '8.8.8.8', '224.0.0.1', '255.255.255.255'):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        try:
            client.connect((address, 9))  # of a datagram: a route is looked up, and nothing is sent
            if not client.getsockname()[0].startswith('127.'): breach(address)
        except OSError as error:
            print(address, error)
""",
        control=_NET,
    ),
]

_FAMILIES = {
    "netlink": (16, 3, 0),
    "packet": (17, 3, 0),
    "vsock": (40, 1, 0),
    "kernel cryptography": (38, 5, 0),
    "express data path": (44, 3, 0),
}

FAMILIES = [
    *(
        Attack(
            name=f"opens a socket for {family}",
            code=REACHES + f"reaches('socket', {', '.join(map(str, words))}) and breach()",
            control=without("seccomp"),
        )
        for family, words in _FAMILIES.items()
    ),
    Attack(
        name="opens a socket of a family that few know",
        # AX.25, IPX, AppleTalk, X.25, RDS, PPPoX, LLC, CAN, TIPC, Bluetooth, IUCV, RxRPC, NFC, KCM, QIPCRTR, SMC, MCTP
        code=REACHES
        + """
families = (3, 4, 5, 9, 21, 24, 26, 29, 30, 31, 32, 33, 35, 36, 37, 39, 41, 42, 43, 45)
for words in reaching('socket', [(family, kind, 0) for family in families for kind in (1, 2, 3, 5)]): breach(*words)
""",
        control=without("seccomp"),
    ),
    Attack(
        name="opens a raw socket",
        code=SYSCALLS
        + """
for family in (2, 10):
    result = call('socket', family, 3, 1)
    print(result)
    if not refused(result): breach()
""",
        control=without("seccomp", "capabilities", "user"),
    ),
    Attack(
        name="asks for a raw socket without any right to it",
        code=REACHES + "for family in (2, 10):\n    if reaches('socket', family, 3, 255): breach()",
        control=without("seccomp"),
    ),
    Attack(
        name="has the kernel load a protocol",
        code=REACHES + "for protocol in (132, 115, 262, 136, 33):\n"
        "    if reaches('socket', 2, 1, protocol) or reaches('socket', 2, 2, protocol): breach(protocol)",
        control=without("seccomp"),
    ),
    Attack(
        name="puts a program of its own on a socket",
        code=SYSCALLS
        + """
import socket, struct
accept_all = ctypes.create_string_buffer(struct.pack('<HBBI', 6, 0, 0, 0xffffffff))
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.setsockopt(socket.SOL_SOCKET, 26, struct.pack('<HxxxxxxQ', 1, ctypes.addressof(accept_all)))
        breach()
except OSError as error:
    print(error)
""",
        control=without("seccomp"),
    ),
    Attack(
        name="takes its own network interface down",
        code="""
import fcntl, socket, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
    fcntl.ioctl(here, 0x8914, struct.pack('16sh14x', b'lo', 0))
    breach()
""",
        control=without("seccomp", "capabilities", "user"),
    ),
    Attack(
        name="names a network interface after somebody else",
        code="""
import fcntl, socket, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
    fcntl.ioctl(here, 0x8916, struct.pack('16sHH4s8x', b'lo:1', 2, 0, bytes([127, 0, 9, 9])))
    breach()
""",
        control=without("seccomp", "capabilities", "user"),
    ),
]

NAMESPACES = [
    Attack(
        name=f"shares the host's {name} namespace",
        code=f"if os.readlink('/proc/self/ns/{name}') == T.ns_{name}: breach()",
        control=control,
    )
    for name, control in (
        ("user", NATIVE),
        ("pid", NATIVE),
        ("mnt", NATIVE),
        ("net", _NET),
        ("ipc", without("ipc")),
        ("uts", without("uts", "names")),
        ("cgroup", without("cgroup")),
    )
]

ATTACKS = [*REACHING, *FAMILIES, *NAMESPACES]
