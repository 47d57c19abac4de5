/* Which of the zygote's read-only files a cell sees: a view of its own, so that no other cell shares an inode with it.
 *
 * Whoever can open a file can lock it, see the locks of others, and watch who opens it; all of that belongs to the
 * inode. Through an overlay of its own a cell has inodes of its own. Mounting one for each directory (some ten) in every
 * cell takes longer than all other steps together, and each cell would look up every path anew. So the overlays are
 * kept: a view is a mount namespace with overlays over all that the zygote has from the host, and over the zygote's root
 * itself. A cell begins with a copy of a view that no living cell has. Locks and watches end with the processes that
 * made them, and a read-only overlay keeps nothing else of a cell.
 *
 * The places of the host are in the zygote at `parts`, outside of its own overlays: an overlay over an overlay would be
 * too deep for Linux where the host's files are in one already. A view has no mount of those, so where they lie on the
 * host doesn't show in it. Where an overlay can't be had, all cells have one view, of the zygote's own mounts.
 */

#define MAX_VIEWS 4096
#define READ_ONLY_MOUNT (MS_NOSUID | MS_NODEV | MS_RDONLY)

/* A part of the root. `source` is where the zygote has it from the host: a directory, or with `file` one file in it; "/"
 * is the view's own root, in which `file` is a path; if it is empty, the zygote's own mount at `target` is taken. NULL
 * after the last. */
struct part {
    const char *source, *file, *target;
};

struct view {
    int mounts; /* a descriptor of the namespace */
    int init;   /* of the init of the cell that has it, or had it last; -1 for none */
};

static struct view views[MAX_VIEWS];
static int view_count;
static struct view the_shared_view = {-1, -1};

/* A view that is being made. The child that makes it shares our memory and our descriptors. */
struct new_view {
    const struct part *parts;
    int own;     /* with overlays, or with the zygote's own mounts */
    int mounts;  /* its namespace, in the end */
    int number;  /* errno */
};

static int bind_mount(const char *source, const char *target) { return mount(source, target, "", MS_BIND | MS_REC, NULL); }

static int overlay(const char *directory, const char *target) {
    if (chdir(directory) < 0) return -1; /* the kernel shows the layers as they are given, and "." says nothing */
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
    /* It tells nobody of its end: whoever waits for children in general doesn't get this one. */
    int pid = clone(build_and_end, stack_end, CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_NEWNS, &view);
    if (pid < 0) return -1;
    while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR) continue;
    errno = view.number;
    return view.mounts;
}

/* A view that no living cell has, a new one if there is none. NULL with errno. */
static struct view *own_view(const struct part *parts, char *stack_end) {
    static struct pollfd inits[MAX_VIEWS]; /* poll passes over those that are -1 */
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

/* Keep in mind whose view it is. Takes `init`, a process descriptor of the cell's init. */
static void give_view(struct view *view, int init) {
    if (view == &the_shared_view) {
        close(init);
        return;
    }
    if (view->init >= 0) close(view->init);
    view->init = init;
}
