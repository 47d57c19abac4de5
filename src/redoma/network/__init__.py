"""How a run reaches the hosts that it names, and nothing else.

    guest ── TCP on the cell's own loopback ──▶ listening socket, made inside ──▶ Proxy, outside ──▶ host
             HTTP proxy, CONNECT or SOCKS5         accepted from outside            decides, resolves,
                                                                                   connects, records

The cell has no interface but `lo`, no route and no name service: every byte passes `proxy.Proxy`, which is made for one
run, with its rules, and ends with it. Proxies are in a process of their own, one for each backend: `process.py` is that
process, `backends/hosts.py` starts it, and `messages.py` is what the two say to each other.

1. `proxy.py` accepts, tells HTTP from SOCKS by the first byte, and decides on host and port (`models.HostRule`).
2. `upstream.py` resolves a name once for the run, refuses addresses that are not public unless the rule names them, and
   connects to exactly the address that it checked.
3. A connection to a host that is allowed as a whole is a tunnel. TLS in it must name that host (SNI). On port 443 it
   must be TLS, and on port 80 HTTP. HTTP/1 without TLS is read on every port: the host may be a proxy itself.
4. Where a rule has methods or paths, or a secret is used, TLS ends in the proxy and begins again towards the host
   (`authority.py`: a certificate authority that is trusted in cells alone, and made anew for each executor).
5. `exchange.py` passes requests and answers on, each parsed by h11 and written anew: what h11 does not take for one
   well-formed message goes nowhere.
6. `credentials.py` puts secrets in for the hosts that they belong to, and takes them out of what comes back.

What is not a boundary: a host that is allowed whole can be used for anything that it offers, and what goes through a
tunnel inside TLS is not seen. `environments/` installs packages through this.
"""
