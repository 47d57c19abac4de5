"""Projects that runs work in: what a run would change, and making that happen, or not.

The one rule of this room: it runs unconfined and looks at directories that hostile code has shaped, or may shape while
it looks. So nothing here ever follows a path by itself. Everything goes through a descriptor of the project and
`tree.Tree`, where the kernel refuses links and ways out; regular files alone are opened, and never to wait.
"""
