/* Views: each cell has its own overlays over the read-only files, so that it shares no inode with another cell.
 *
 * Whoever can open a file can lock it, see locks of others, and watch who opens it; all of that belongs to the inode.
 * In its own overlay a cell has its own inodes. Mounting an overlay for each of about ten directories in every cell
 * would take longer than all other steps together, and every path would have to be looked up anew. So the overlays are
 * kept: a view is a mount namespace with overlays over everything that the zygote has from the host, and over the
 * zygote's root. A cell begins with a copy of a view that no live cell uses. Locks and watches end with the processes
 * that made them, and a read-only overlay keeps nothing else of a cell.
 *
 * The zygote has the directories of the host at `parts`, outside of its own overlays: an overlay over an overlay would
 * be too deep for Linux if the host's files are in one already. A view doesn't contain these mounts, so it doesn't
 * reveal paths of the host. If overlays can't be mounted, all cells share one view, with the zygote's own mounts.
 */

#define MAX_VIEWS 4096
#define READ_ONLY_MOUNT (MS_NOSUID | MS_NODEV | MS_RDONLY)

/* A part of the root, shown at `target`. `source` is a directory that the zygote has from the host; with `file`, one
 * file in it is shown. If `source` is "/", `file` is a path in the view's own root. If it is empty, the zygote's own
 * mount at `target` is used. It is NULL after the last part. */
struct part {
    const char *source, *file, *target;
};

struct view {
    int mounts; /* a descriptor of the mount namespace */
    int init;   /* a pidfd of the init of the cell that uses it, or used it last; -1 for none */
};

static struct view views[MAX_VIEWS];
static int view_count;
static struct view the_shared_view = {-1, -1};

/* A view that is being made. The child that makes it shares our memory and our descriptors. */
struct new_view {
    const struct part *parts;
    int own;     /* whether it has overlays, or the zygote's own mounts */
    int mounts;  /* a descriptor of its namespace, when it is done */
    int number;  /* errno if it failed */
};

static int bind_mount(const char *source, const char *target) { return mount(source, target, "", MS_BIND | MS_REC, NULL); }

static int overlay(const char *directory, const char *target) {
    if (chdir(directory) < 0) return -1; /* mountinfo shows the layers as they are given, and "." reveals nothing */
    return mount("redoma", target, "overlay", READ_ONLY_MOUNT, "lowerdir=.:" PARTS "/empty");
}

static int add_part(const struct part *part, int own) {
    char target[1024], source[1024];
    int size = snprintf(target, sizeof target, "/mnt%s", part->target);
    if (size < 0 || (size_t)size >= sizeof target) return errno = ENAMETOOLONG, -1;
    if (!own || !part->source[0]) return bind_mount(part->target, target);
    if (!part->file[0]) return overlay(part->source, target);
    int inside = strcmp(part->source, "/") == 0;
    size = snprintf(source, sizeof source, inside ? "/mnt%s" : "/mnt/mnt/%s", part->file);
    if (size < 0 || (size_t)size >= sizeof source) return errno = ENAMETOOLONG, -1;
    if (inside) return bind_mount(source, target);
    if (overlay(part->source, "/mnt/mnt") < 0 || bind_mount(source, target) < 0) return -1;
    return umount2("/mnt/mnt", MNT_DETACH);
}

static int build_view(struct new_view *view) {
    if (view->own ? overlay(PARTS "/root", "/mnt") < 0 : mount(PARTS "/root", "/mnt", "", MS_BIND, NULL) < 0) return -1;
    for (const struct part *part = view->parts; part->source; part++)
        if (add_part(part, view->own) < 0) return -1;
    if (chdir("/mnt") < 0 || syscall(SYS_pivot_root, ".", "mnt") < 0 || chdir("/") < 0) return -1;
    if (umount2("/mnt", MNT_DETACH) < 0) return -1;
    view->mounts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    return view->mounts < 0 ? -1 : 0;
}

static int build_and_end(void *with) {
    struct new_view *view = with;
    if (build_view(view) < 0) view->number = errno;
    _exit(0);
}

/* Returns a descriptor of the mount namespace of a new view, or -1 with errno. */
static int make_view(const struct part *parts, int own, char *stack_end) {
    struct new_view view = {parts, own, -1, 0};
    /* Without a signal at its end, so that a wait for any child doesn't find it. */
    int pid = clone(build_and_end, stack_end, CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_NEWNS, &view);
    if (pid < 0) return -1;
    while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR) continue;
    errno = view.number;
    return view.mounts;
}

/* Returns a view that no live cell uses, if necessary a new one; NULL with errno. */
static struct view *own_view(const struct part *parts, char *stack_end) {
    static struct pollfd inits[MAX_VIEWS]; /* poll ignores those that are -1 */
    for (int which = 0; which < view_count; which++) inits[which] = (struct pollfd){views[which].init, POLLIN, 0};
    if (poll(inits, (nfds_t)view_count, 0) < 0) return NULL;
    for (int which = 0; which < view_count; which++)
        if (views[which].init < 0 || inits[which].revents & POLLIN) return &views[which];
    if (view_count == MAX_VIEWS) return errno = EMFILE, NULL;
    int mounts = make_view(parts, 1, stack_end);
    if (mounts < 0) return NULL;
    views[view_count] = (struct view){mounts, -1};
    return &views[view_count++];
}

static struct view *shared_view(const struct part *parts, char *stack_end) {
    if (the_shared_view.mounts < 0) the_shared_view.mounts = make_view(parts, 0, stack_end);
    return the_shared_view.mounts < 0 ? NULL : &the_shared_view;
}

/* Note which cell uses a view. Takes ownership of `init`, a pidfd of the cell's init. */
static void give_view(struct view *view, int init) {
    if (view == &the_shared_view) {
        close(init);
        return;
    }
    if (view->init >= 0) close(view->init);
    view->init = init;
}
