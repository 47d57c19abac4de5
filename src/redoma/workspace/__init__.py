"""Projects that runs work in: what a run would change, and making that happen, or not.

    effects       what a run left in an overlay → Effect, with diffs and protected (under other names: names) changes
    kept          effects that wait to be applied, and those that were
    plan          which changes are chosen, and the steps that apply or undo them
    checkpoint    what a project was before a run that works in it directly (snapshot), and going back to it
    journal       steps, written down before they are taken; carried out in two ways:
    transaction     apply and undo: all or nothing
    restore         back to a checkpoint: path by path, as much as can be
    tree, copying descriptors instead of paths; copies of files with their holes and attributes
    atomic        `redoma.atomic_write`

The one rule of this room: it runs unconfined and looks at directories that hostile code has shaped, or may shape while
it looks. So nothing here ever follows a path by itself. Everything goes through a descriptor of the project and
`tree.Tree`, where the kernel refuses links and ways out; regular files alone are opened, and never to wait.
"""
