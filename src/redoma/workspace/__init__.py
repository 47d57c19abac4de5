"""Projects that runs work in: what a run would change, and applying, undoing or rolling back those changes.

    effects       turn what a run left in an overlay into an Effect, with diffs
    protected     paths that are not changed unnoticed, also under their other names (names, envrc)
    kept          effects that wait to be applied, and those that were applied
    plan          which changes are chosen, and the steps that apply or undo them
    checkpoint    the state of a project before a run that works in it directly (snapshot), and rolling back to it
    journal       steps, written down before they are executed, in one of two ways:
    transaction     apply and undo: all or nothing
    restore         roll back to a checkpoint: path by path, as much as possible
    tree, copying descriptors instead of paths; copies of files with their holes and attributes
    atomic        `redoma.atomic_write`

This code runs unconfined and looks at directories that hostile code has written, or may change at any moment. So it
never resolves a path itself. Every access goes through a descriptor of the project and `tree.Tree`, where the kernel
refuses links and paths that leave the project. Only regular files are opened, and opening one never blocks.
"""
