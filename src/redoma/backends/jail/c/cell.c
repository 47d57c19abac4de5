/* Makes a cell: a list of steps, each of which sets up one isolation layer and has its name. Start at "the steps, in
 * their order"; `cell_serve` is the way in.
 *
 *   zygote: Python, in a user namespace of its own (call it U), waiting in cell_serve
 *     └─ clone, sharing memory ─ the maker: in new namespaces that belong to U. Takes `init_steps`,
 *          │                     forks the guest, and executes init.c, which is pid 1 of the cell
 *          └─ fork ─ the guest: enters its own user namespace below U, takes `guest_steps`,
 *               │    probes which layers are in force, and returns from cell_serve into Python
 *               └─ clone, sharing memory ─ the holder: see cell_hold
 *
 * The maker shares the zygote's memory, so only one process with an interpreter is forked for each cell. The zygote is
 * suspended meanwhile (CLONE_VFORK), and the maker gets its own memory when it executes init: no process that runs
 * while a guest is alive shares memory with the zygote.
 *
 * If a step fails, the cell is broken: nothing runs with fewer layers than requested. `without` leaves steps out, for
 * tests that must see an attack succeed first. Afterwards the guest probes which layers are really in force: probes.h.
 *
 * In most containers the kernel doesn't let a user namespace mount its own /proc, or /proc/sys is read-only. Then the
 * cell has an empty /proc, only the filter of system calls prevents further user namespaces, and the probes read the
 * zygote's /proc.
 *
 * A *lean* cell has no namespaces, for hosts where none can be made. It takes the steps that need none, and some of its
 * own: see "the lean cell".
 *
 * The settings (who the guest is, where it may write) are in configuration.py and come in `struct zygote`.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cell.h"
#include "views.h"

/* Missing in older headers; the same on every architecture. */
#define NR_CLONE3 435
#define NR_CLOSE_RANGE 436
#define NR_LANDLOCK_CREATE_RULESET 444
#define NR_LANDLOCK_ADD_RULE 445
#define NR_LANDLOCK_RESTRICT_SELF 446
#define LANDLOCK_TCP 4    /* the first version that restricts TCP (Linux 6.7) */
#define LANDLOCK_SCOPES 6 /* the first version that keeps signals and abstract sockets inside (Linux 6.12) */
#define USER_NAMESPACES "sys/user/max_user_namespaces" /* below /proc */

/* Filled in once by zygote.py; compiled.py has the same structure. */
struct zygote {
    int orders;   /* the socket that orders for cells come by */
    int redoma;   /* process descriptors of Redoma */
    int self;     /* and of this zygote */
    int init;     /* the program init.c */
    int landlock; /* the version of Landlock; 0 if there is none */
    int on_disk;  /* changes to the project are kept on disk */
    int shared;   /* 1: all cells share one view of the read-only files; 2: and see the host's own, not overlays */
    int lean;     /* its cells have no namespaces */
    int (*fork)(void);
    const struct sock_filter *filter;
    uint64_t filter_length;
    uint64_t namespaces;      /* of each cell, as flags of clone(2) */
    const char *map;          /* uid_map and gid_map */
    const char *host_name;
    const char *run_options;  /* of the tmpfs at /run */
    const char *overlay_options;
    const char *project, *empty, *changes; /* their paths in the zygote */
    const char *const *writable;           /* where a guest may write; the last is /run */
    const char *const *devices;            /* devices that it may write to */
    const char *const *read_only;          /* paths that must be read-only */
    const char *const *variables;          /* that the zygote may have been executed with */
    const char *const *spaces;             /* names of namespaces: ours, then the kernel's */
    const struct part *parts;              /* of the root; see views.h */
    const char *const *readable;           /* what the guest of a lean cell may read and execute */
    /* Set when cell_serve returns in the guest. By themselves, because Python copies a dozen pages to look into a
     * structure in this one. */
    uint64_t seed;
    uint32_t ahead, warm;
    char place[sizeof((struct cell_order *)0)->place];
    char found[8192];
};

/* A cell that is being made. */
struct cell {
    const struct zygote *zygote;
    const struct cell_order *order;
    struct view *view; /* of the read-only files */
    int control, order_socket, streams[3];
    int groups[MAX_GROUPS], group_count;
    int hidden[2];     /* a pipe that init closes as soon as the guest can't trace or read it any more */
    int proc;          /* the zygote's /proc, which shows more than the cell's own */
    int empty_proc;    /* the cell's own /proc is empty */
    int init_seen;     /* the pid of its init in the zygote's /proc */
    int layer;         /* the layer above the project, or -1 */
    int only_loopback; /* its network has no other interface */
    jmp_buf *guest;    /* where the guest continues: in cell_serve, on the stack on which Python called it */
};

/* --- frames to Redoma --- */

static void send_frame(int to, char kind, const char *payload, int descriptor) {
    char frame[FRAME_HEADER + 256], space[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    size_t size = strlen(payload);
    if (size > sizeof frame - FRAME_HEADER) size = sizeof frame - FRAME_HEADER;
    put_header(frame, kind, (uint32_t)size);
    memcpy(frame + FRAME_HEADER, payload, size);
    struct iovec piece = {frame, FRAME_HEADER + size};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    if (descriptor >= 0) attach_descriptor(&message, space, descriptor);
    sendmsg(to, &message, MSG_NOSIGNAL); /* fails only if Redoma is gone */
}

/* Report the step that failed. The process ends afterwards. */
static void say_broken(int to, const char *step, int number) {
    char text[128];
    snprintf(text, sizeof text, "%s %d", step, number);
    send_frame(to, FRAME_BROKEN, text, -1);
}

/* --- small tools --- */

/* Write to a file of the kernel, in one call. */
static int put_at(int directory, const char *path, const char *text) {
    int file = openat(directory, path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return -1;
    ssize_t written = write(file, text, strlen(text));
    int number = errno;
    close(file);
    errno = number;
    return written < 0 ? -1 : 0;
}

static int put(const char *path, const char *text) { return put_at(AT_FDCWD, path, text); }

/* Read an open file of the kernel as text, and close it. Returns its length; -1 on failure or if it doesn't fit. */
static ssize_t read_text(int file, char *buffer, size_t size) {
    if (file < 0) return -1;
    size_t length = 0;
    ssize_t got = 0;
    while (length < size - 1 && (got = read(file, buffer + length, size - 1 - length)) > 0) length += (size_t)got;
    int number = errno;
    close(file);
    errno = length == size - 1 ? EFBIG : number;
    if (got < 0 || length == size - 1) return -1;
    buffer[length] = 0;
    return (ssize_t)length;
}

static int make_directories(const char *path) {
    char partial[sizeof((struct cell_order *)0)->project];
    snprintf(partial, sizeof partial, "%s", path);
    for (char *slash = partial + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        if (mkdir(partial, 0755) < 0 && errno != EEXIST && errno != EROFS) return -1;
        *slash = '/';
    }
    return mkdir(partial, 0755) < 0 && errno != EEXIST && errno != EROFS ? -1 : 0;
}

/* Open a file below /proc: the cell's own, or the zygote's if that is empty. */
static int open_proc(const struct cell *cell, const char *path, int flags) {
    char whole[96];
    if (cell->empty_proc) return openat(cell->proc, path, flags | O_CLOEXEC);
    snprintf(whole, sizeof whole, "/proc/%s", path);
    return open(whole, flags | O_CLOEXEC);
}

static int put_proc(const struct cell *cell, const char *path, const char *text) {
    char whole[96];
    if (cell->empty_proc) return put_at(cell->proc, path, text);
    snprintf(whole, sizeof whole, "/proc/%s", path);
    return put(whole, text);
}

#include "probes.h"

/* --- taking steps --- */

struct step {
    const char *name;
    int (*take)(struct cell *); /* returns 0, or -1 with errno */
};

/* The names that `without` may contain. The index of one is its bit. Namespaces come first. */
static const char *const names[] = {
    "net",  "ipc",          "uts",      "cgroup",       "lifeline", "private",        "terminals", "proc",    "names",
    "loopback", "capabilities", "no_new_privs", "memory-of-init", "session", "user", "user-namespaces", "landlock", "seccomp",
    "descriptors", "locks",
};

/* Returns the name of a step by its bit; NULL past the last. */
const char *cell_step_name(unsigned which) { return which < sizeof names / sizeof *names ? names[which] : NULL; }

static int left_out(const struct cell *cell, const char *name) {
    for (unsigned which = 0; which < sizeof names / sizeof *names; which++)
        if (strcmp(names[which], name) == 0) return (cell->order->without >> which) & 1;
    return 0;
}

static void take(struct cell *cell, int tell, const struct step *steps, size_t count) {
    for (size_t which = 0; which < count; which++) {
        if (left_out(cell, steps[which].name)) continue;
        if (steps[which].take(cell) < 0) {
            say_broken(tell, steps[which].name, errno);
            _exit(1);
        }
    }
}

#define TAKE(cell, tell, steps) take(cell, tell, steps, sizeof(steps) / sizeof *(steps))

/* --- the maker: what a cell sees --- */

/* From here on, the memory and processor time of everything in the cell are counted. */
static int join_groups(struct cell *cell) {
    for (int which = 0; which < cell->group_count; which++)
        if (write(cell->groups[which], "0", 1) < 0) return -1;
    return 0;
}

/* Let the kernel send init this signal when the zygote ends. */
static int signal_at_the_zygotes_end(struct cell *cell, int number) {
    struct pollfd zygote = {cell->zygote->self, POLLIN, 0};
    if (prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) < 0) return -1;
    if (poll(&zygote, 1, 0) != 0) _exit(1); /* it had died before we asked */
    return 0;
}

/* The cell ends with its init, and init with the zygote. */
static int die_with_the_zygote(struct cell *cell) { return signal_at_the_zygotes_end(cell, SIGKILL); }

/* Enter a copy of the view: later mounts are in this cell only. */
static int own_mounts(struct cell *cell) {
    return setns(cell->view->mounts, CLONE_NEWNS) < 0 || unshare(CLONE_NEWNS) < 0 ? -1 : 0;
}

/* Keep the zygote's /proc open, for what the cell's own doesn't show on every kernel. */
static int keep_the_old_proc(struct cell *cell) {
    char text[4096];
    cell->proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (cell->proc < 0 || read_text(openat(cell->proc, "self/net/dev", O_RDONLY | O_CLOEXEC), text, sizeof text) < 0)
        return -1;
    int others = 0;
    for (char *colon = text; (colon = strchr(colon, ':')); colon++) {
        char *name = colon;
        while (name > text && name[-1] != ' ' && name[-1] != '\n') name--;
        if (colon - name != 2 || memcmp(name, "lo", 2) != 0) others = 1;
    }
    cell->only_loopback = !others;
    return 0;
}

/* Mount the project at its own path: read-only, or beneath a layer that receives what is written.
 *
 * Only the descriptor that is sent to Redoma leads to that layer. In memory it is on the cell's own file system and
 * shares its size limit; on disk, Redoma watches its size. Always an overlay: through a bind mount, sockets, pipes and
 * locks would be those of the host. */
static int show_project(struct cell *cell) {
    const struct zygote *zygote = cell->zygote;
    const struct cell_order *order = cell->order;
    char place[256] = "/run/layer", above[sizeof place + 8], work[sizeof place + 8], options[1024];
    struct statx about;
    if (make_directories(order->project) < 0) return -1;
    if (order->workspace == OVERLAY) {
        if (order->layer[0]) snprintf(place, sizeof place, "%s/%s", zygote->changes, order->layer);
        snprintf(above, sizeof above, "%s/above", place);
        snprintf(work, sizeof work, "%s/work", place);
        if (mkdir(place, 0700) < 0 || mkdir(above, 0755) < 0 || mkdir(work, 0700) < 0) return -1;
        snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s,%s", zygote->project, above, work,
                 zygote->overlay_options);
        if (mount("project", order->project, "overlay", MS_NOSUID | MS_NODEV, options) < 0) return -1;
        if (syscall(SYS_statx, AT_FDCWD, zygote->project, 0, STATX_MODE, &about) < 0) return -1;
        if (chmod(above, about.stx_mode & 07777) < 0) return -1;
        cell->layer = open(above, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (cell->layer < 0) return -1;
        send_frame(cell->control, FRAME_LAYER, "", cell->layer);
    } else {
        snprintf(options, sizeof options, "lowerdir=%s:%s", zygote->project, zygote->empty);
        if (mount("project", order->project, "overlay", MS_NOSUID | MS_NODEV | MS_RDONLY, options) < 0) return -1;
    }
    unsigned long hidden = MS_NOSUID | MS_NODEV | MS_RDONLY;
    if (mount("cell", zygote->project, "tmpfs", hidden, "mode=0,size=4k,nr_inodes=2") < 0) return -1;
    return zygote->on_disk ? mount("cell", zygote->changes, "tmpfs", hidden, "mode=0,size=4k,nr_inodes=2") : 0;
}

/* Mount one file system of limited size for /tmp, /workspace and /dev/shm, and a small one for /run, so that a guest
 * that has filled its disk can still report. */
static int own_files(struct cell *cell) {
    const struct zygote *zygote = cell->zygote;
    char options[96], place[16];
    snprintf(options, sizeof options, "mode=755,size=%llu,nr_inodes=%llu", (unsigned long long)cell->order->disk,
             (unsigned long long)cell->order->files + 8);
    if (mount("cell", "/run", "tmpfs", MS_NOSUID | MS_NODEV, options) < 0) return -1;
    for (int which = 0; zygote->writable[which + 1]; which++) {
        snprintf(place, sizeof place, "/run/%d", which);
        if (mkdir(place, 0700) < 0 || mount(place, zygote->writable[which], "", MS_BIND, NULL) < 0) return -1;
    }
    if (cell->order->workspace != SCRATCH && show_project(cell) < 0) {
        say_broken(cell->control, "project", errno);
        _exit(1);
    }
    return mount("cell", "/run", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, zygote->run_options);
}

/* Mount a devpts of its own, for pty.fork, script, pexpect. */
static int own_terminals(struct cell *cell) {
    (void)cell;
    return mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=600");
}

/* Mount a /proc with only the cell's processes: no settings or statistics of the kernel (Linux 5.8). */
static int own_processes(struct cell *cell) {
    unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    if (mount("proc", "/proc", "proc", flags, "subset=pid") == 0) return 0;
    if (errno != EPERM) return -1;
    /* The kernel refuses if parts of the visible /proc are covered, as in most containers. */
    cell->empty_proc = 1;
    return mount("cell", "/proc", "tmpfs", flags | MS_RDONLY, "mode=555,size=4k,nr_inodes=1");
}

static int own_name(struct cell *cell) {
    const char *name = cell->zygote->host_name;
    if (left_out(cell, "uts")) return 0;
    return sethostname(name, strlen(name)) < 0 || setdomainname("", 0) < 0 ? -1 : 0;
}

/* Bring the cell's own loopback up. */
static int own_loopback(struct cell *cell) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (left_out(cell, "net")) return 0;
    int any = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (any < 0) return -1;
    int answer = ioctl(any, SIOCSIFFLAGS, &request), number = errno;
    close(any);
    errno = number;
    return answer;
}

/* Make the way to the hosts that the request names: a socket that listens on the cell's loopback and is served outside.
 * The cell still has no other interface, no process inside keeps the socket, and no other cell shares this loopback. */
static int own_listener(struct cell *cell) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)cell->order->listen)};
    if (!cell->order->listen) return 0;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0) return -1;
    int answer = bind(listener, (struct sockaddr *)&here, sizeof here);
    if (answer == 0) answer = listen(listener, SOMAXCONN);
    int number = errno;
    if (answer == 0) send_frame(cell->control, FRAME_LISTENER, "", listener);
    close(listener);
    errno = number;
    return answer;
}

/* --- maker and guest: giving up privileges --- */

#define SECUREBITS 0xef /* uid 0 is not special, setuid keeps nothing, no ambient capabilities; all locked */

/* Drop everything from the bounding set. Returns the errno that ends it: EINVAL past the last capability of this kernel. */
static int empty_bounding_set(void) {
    for (int number = 0; prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0; number++) continue;
    return errno;
}

/* Empty every capability set but the bounding set. */
static int empty_other_sets(struct cell *cell) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    (void)cell;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0) return -1;
    return (int)syscall(SYS_capset, &header, none);
}

/* Empty every capability set. The bounding set first, because emptying it needs a capability. */
static int no_capabilities(struct cell *cell) {
    if (empty_bounding_set() != EINVAL) return -1;
    return prctl(PR_SET_SECUREBITS, SECUREBITS, 0, 0, 0) < 0 ? -1 : empty_other_sets(cell);
}

/* No program gains privileges by being setuid or by file capabilities. */
static int no_new_privileges(struct cell *cell) {
    (void)cell;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

/* --- the guest: who it is, and what it may do --- */

/* New session, default signals, its streams and its working directory. Ignored and blocked signals of the zygote, or of
 * what started Redoma (nohup), must not be inherited. SIGINT keeps Python's handler. */
static int own_session(struct cell *cell) {
    char workspace[sizeof cell->order->place + 16];
    sigset_t none;
    struct sigaction plain = {.sa_handler = SIG_DFL};
    if (setsid() < 0) return -1;
    for (int number = 1; number <= SIGRTMAX; number++)
        if (number != SIGINT) sigaction(number, &plain, NULL); /* fails for SIGKILL and SIGSTOP */
    for (int number = 32; number < 34; number++) { /* sigaction refuses these, and posix_spawn leaves them ignored */
        static const unsigned long as_the_kernel_has_it[4] = {0};
        if (syscall(SYS_rt_sigaction, number, as_the_kernel_has_it, NULL, sizeof(uint64_t)) < 0) return -1;
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0) return -1; /* or /proc/self would belong to root */
    for (int number = 0; number < 3; number++)
        if (dup2(cell->streams[number], number) < 0) return -1;
    snprintf(workspace, sizeof workspace, "%s/workspace", cell->order->place);
    if (chdir(workspace) < 0) return -1;
    return put_proc(cell, "self/oom_score_adj", "1000"); /* if memory runs out the guest is killed first, and init can report it */
}

/* Enter a user namespace below the zygote's, which owns the cell's other namespaces: whatever the guest becomes in its
 * own one, it has no rights over them. And a cgroup namespace, which hides the path of its group. */
static int own_user(struct cell *cell) {
    int flags = CLONE_NEWUSER | (left_out(cell, "cgroup") ? 0 : CLONE_NEWCGROUP);
    if (unshare(flags) < 0) return -1;
    if (put_proc(cell, "self/setgroups", "deny") < 0) return -1; /* or the kernel refuses the group map */
    if (put_proc(cell, "self/uid_map", cell->zygote->map) < 0) return -1;
    return put_proc(cell, "self/gid_map", cell->zygote->map);
}

/* Forbid further user namespaces, which would expose much more of the kernel. The filter refuses them, too; this still
 * holds if the filter has a gap.
 *
 * Also limit inotify: the kernel allows 128 instances for each user, and a run must not use those up for the programs
 * of its user on the host. A kernel may be built without inotify. */
static int no_more_user_namespaces(struct cell *cell) {
    if (put_at(cell->proc, USER_NAMESPACES, "0") < 0) {
        /* /proc/sys is read-only in most containers. Then the probe checks that the filter refuses. */
        return errno == EROFS && !left_out(cell, "seccomp") ? 0 : -1;
    }
    if (put_at(cell->proc, "sys/user/max_inotify_instances", "16") < 0 && errno != ENOENT) return -1;
    if (put_at(cell->proc, "sys/user/max_inotify_watches", "4096") < 0 && errno != ENOENT) return -1;
    return 0;
}

static int allow_beneath(int ruleset, const char *path, uint64_t rights) {
    struct landlock_path_beneath_attr rule = {.allowed_access = rights};
    rule.parent_fd = open(path, O_PATH | O_CLOEXEC);
    if (rule.parent_fd < 0) return -1;
    long answer = syscall(NR_LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    int number = errno;
    close(rule.parent_fd);
    errno = number;
    return (int)answer;
}

/* Rights of Landlock: headers have only those of their own kernel. */
enum {
    RIGHT_EXECUTE = 1 << 0,
    RIGHT_WRITE_FILE = 1 << 1,
    RIGHT_READ_FILE = 1 << 2,
    RIGHT_READ_DIR = 1 << 3,
    RIGHT_MAKE_CHAR = 1 << 6,
    RIGHT_MAKE_BLOCK = 1 << 11,
    RIGHT_IOCTL_DEV = 1 << 15,
    RIGHTS_TO_READ = RIGHT_EXECUTE | RIGHT_READ_FILE | RIGHT_READ_DIR,
};
enum { NET_BIND_TCP = 1 << 0, NET_CONNECT_TCP = 1 << 1 };
enum { SCOPE_ABSTRACT_SOCKETS = 1 << 0, SCOPE_SIGNALS = 1 << 1 };

/* All rights to files and directories that a version of Landlock can restrict. */
static uint64_t all_rights(int version) { return (1u << (version < 3 ? 14 : version < 5 ? 15 : 16)) - 1; }

/* Those that a guest has to what is its own: all but devices. */
static uint64_t own_rights(int version) {
    return all_rights(version) & ~(uint64_t)(RIGHT_MAKE_CHAR | RIGHT_MAKE_BLOCK | RIGHT_IOCTL_DEV);
}

/* Make a ruleset that forbids what no rule allows: these rights to files, and these to TCP. Signals and abstract sockets
 * stay inside, where this version of Landlock can keep them there. */
static int make_ruleset(int version, uint64_t files, uint64_t tcp) {
    uint64_t attributes[3] = {files, tcp, SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS};
    size_t known = version >= LANDLOCK_SCOPES ? 3 : version >= LANDLOCK_TCP ? 2 : 1;
    return (int)syscall(NR_LANDLOCK_CREATE_RULESET, attributes, known * sizeof *attributes, 0);
}

/* Allow the guest to write to the devices it needs and to its own directories. Then restrict it to the ruleset. */
static int restrict_to(int ruleset, const struct cell *cell) {
    const struct zygote *zygote = cell->zygote;
    uint64_t device = (RIGHT_READ_FILE | RIGHT_WRITE_FILE | RIGHT_IOCTL_DEV) & all_rights(zygote->landlock);
    char path[sizeof cell->order->place + 16];
    for (int which = 0; zygote->devices[which]; which++)
        if (allow_beneath(ruleset, zygote->devices[which], device) < 0) return -1;
    for (int which = 0; zygote->writable[which]; which++) {
        snprintf(path, sizeof path, "%s%s", cell->order->place, zygote->writable[which]);
        if (allow_beneath(ruleset, path, own_rights(zygote->landlock)) < 0) return -1;
    }
    if (syscall(NR_LANDLOCK_RESTRICT_SELF, ruleset, 0) < 0) return -1;
    return close(ruleset);
}

static int only_these_files(struct cell *cell) {
    int version = cell->zygote->landlock;
    if (!version) return 0; /* the mounts restrict the same; the probe reports the missing second layer */
    int ruleset = make_ruleset(version, all_rights(version), 0); /* TCP needs no rule: the network namespace is empty */
    if (ruleset < 0 || allow_beneath(ruleset, "/", RIGHTS_TO_READ) < 0) return -1;
    if (cell->order->workspace == OVERLAY && allow_beneath(ruleset, cell->order->project, own_rights(version)) < 0)
        return -1;
    return restrict_to(ruleset, cell);
}

/* Install the filter, for all threads of the process or not at all: a thread without it would be a way around it. */
static int only_these_calls(struct cell *cell) {
    struct sock_fprog program = {(unsigned short)cell->zygote->filter_length,
                                 (struct sock_filter *)cell->zygote->filter};
    long thread = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
    if (thread > 0) errno = EAGAIN;
    return thread == 0 ? 0 : -1;
}

/* Close everything but the three streams and the order socket, which closes before any untrusted code runs; and the
 * zygote's /proc, if the probes need it: `probe_all` closes it. */
static int only_its_streams(struct cell *cell) {
    unsigned first = ORDER + 1;
    if (cell->empty_proc) {
        int proc = dup3(cell->proc, ORDER + 1, O_CLOEXEC);
        if (proc < 0) return -1;
        cell->proc = proc;
        first++;
    }
    return (int)syscall(NR_CLOSE_RANGE, first, ~0u, 0);
}

/* --- the steps, in their order --- */

static const struct step init_steps[] = {
    {"lifeline", die_with_the_zygote}, {"mount", own_mounts},        {"group", join_groups},
    {"old-proc", keep_the_old_proc},   {"private", own_files},       {"terminals", own_terminals},
    {"proc", own_processes},           {"names", own_name},          {"loopback", own_loopback},
    {"listener", own_listener},
};

static const struct step init_last_steps[] = {{"capabilities", no_capabilities}, {"no_new_privs", no_new_privileges}};

/* Before init hides its /proc, which these and the first probe still read. */
static const struct step guest_first_steps[] = {
    {"session", own_session},
    {"user", own_user},
    {"user-namespaces", no_more_user_namespaces},
};

static const struct step guest_steps[] = {
    {"capabilities", no_capabilities},
    {"no_new_privs", no_new_privileges},
    {"landlock", only_these_files},
    {"seccomp", only_these_calls},
    {"descriptors", only_its_streams},
};

/* --- the lean cell: what replaces the namespaces --- */

/* Empty the bounding set, if we are root. Otherwise no_new_privs keeps programs from gaining what is left in it. */
static int no_bounding_set(struct cell *cell) {
    (void)cell;
    int number = empty_bounding_set();
    return number == EINVAL || number == EPERM ? 0 : -1;
}

/* Switch to the cell's own user, if it has one. The effective id of init is the guest's, so that it can signal the
 * guest and read its report. Its real id is another one, and that decides who may signal init.
 *
 * By raw system calls: the C library's functions would change the users of the zygote's threads, too. */
static int take_own_user(struct cell *cell) {
    long user = cell->order->user;
    if (!user) return 0;
    if (syscall(SYS_setgroups, 0, NULL) < 0 || syscall(SYS_setresgid, user, user, user) < 0) return -1;
    return (int)syscall(SYS_setresuid, user + 1, user, user + 1);
}

static int become_own_user(struct cell *cell) {
    long user = cell->order->user;
    return user ? (int)syscall(SYS_setresuid, user, user, user) : 0;
}

/* Send init a SIGTERM when the zygote ends, so that it kills everything. Without a pid namespace the kernel doesn't. */
static int be_told_of_the_zygotes_end(struct cell *cell) { return signal_at_the_zygotes_end(cell, SIGTERM); }

/* Orphans of the cell become children of init, so none can escape by losing its parent. */
static int adopt_orphans(struct cell *cell) {
    (void)cell;
    return prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

/* Init with its own user sets this itself, after its exec. On Linux before 6.16, a process that has it and executes a
 * program gets its real user id as its effective one, and then init could not signal the guest. */
static int no_new_privileges_yet(struct cell *cell) { return cell->order->user ? 0 : no_new_privileges(cell); }

/* Enter a Landlock domain with init and guest that signals can't leave, because init ends a cell by kill(-1). The
 * guest's own domain is inside it, so its signals don't reach init. If the cell has its own user, that has the same
 * effect.
 *
 * Tests can't leave this out: without it, kill(-1) would kill every process of the user who started Redoma. */
static int own_domain(struct cell *cell) {
    if (!cell->order->user && cell->zygote->landlock >= LANDLOCK_SCOPES) {
        int ruleset = make_ruleset(LANDLOCK_SCOPES, 0, 0);
        if (ruleset < 0 || syscall(NR_LANDLOCK_RESTRICT_SELF, ruleset, 0) < 0) return -1;
        close(ruleset);
    }
    if (kill(getppid(), 0) < 0 && errno == EPERM) return 0; /* we can't signal the zygote, so nobody else either */
    errno = ENOSYS;
    return -1;
}

static int enter_its_place(struct cell *cell) { return chdir(cell->order->place); }

/* Let the kernel kill the guest when init ends. (Init, or else the zygote, ends its children.) */
static int die_with_init(struct cell *cell) {
    (void)cell;
    return prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
}

/* Restrict the guest with Landlock: it may read the system's files and write its own, and nothing else, not even other
 * processes in /proc. No TCP; no signals or abstract sockets outside of the cell. */
static int only_these_places(struct cell *cell) {
    const struct zygote *zygote = cell->zygote;
    int version = zygote->landlock;
    struct stat about;
    int ruleset = make_ruleset(version, all_rights(version), NET_BIND_TCP | NET_CONNECT_TCP);
    if (ruleset < 0) return -1;
    for (int which = 0; zygote->readable[which]; which++) {
        if (stat(zygote->readable[which], &about) < 0) continue; /* not on this system */
        uint64_t rights = S_ISDIR(about.st_mode) ? RIGHTS_TO_READ : RIGHTS_TO_READ & ~(uint64_t)RIGHT_READ_DIR;
        if (allow_beneath(ruleset, zygote->readable[which], rights) < 0) return -1;
    }
    return restrict_to(ruleset, cell);
}

static const struct step lean_init_steps[] = {
    {"bounding-set", no_bounding_set}, {"user", take_own_user},      {"lifeline", be_told_of_the_zygotes_end},
    {"orphans", adopt_orphans},        {"no_new_privs", no_new_privileges_yet}, {"domain", own_domain},
    {"place", enter_its_place},        {"old-proc", keep_the_old_proc},
};

static const struct step lean_init_last_steps[] = {{"capabilities", empty_other_sets}};

static const struct step lean_guest_steps[] = {
    {"user", become_own_user},
    {"session", own_session},
    {"end", die_with_init},
    {"capabilities", empty_other_sets},
    {"no_new_privs", no_new_privileges},
    {"landlock", only_these_places},
    {"seccomp", only_these_calls},
    {"descriptors", only_its_streams},
};

/* --- what the init of a lean cell leaves if it is killed: the zygote adopts and ends it --- */

#define MAX_INITS 20000 /* more than there may be cells */
static int inits[MAX_INITS], init_count;

static void remember(int pid) {
    if (init_count < MAX_INITS) inits[init_count++] = pid;
}

/* Kill our children that are not inits. Their own children then become ours, and SIGCHLD reports them. */
static void end_strays(void) {
    char path[64];
    static int alive[MAX_INITS];
    int count = 0, pid;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    FILE *children = fopen(path, "re");
    if (!children) return;
    while (fscanf(children, "%d", &pid) == 1) {
        int known = 0;
        for (int which = 0; which < init_count; which++) known |= inits[which] == pid;
        if (!known) {
            kill(pid, SIGKILL);
        } else if (count < MAX_INITS) {
            alive[count++] = pid;
        }
    }
    fclose(children);
    memcpy(inits, alive, sizeof *inits * (size_t)count);
    init_count = count;
}

/* --- making one --- */

static int no_holder; /* init could not recognise a holder in a /proc of another pid namespace */

static char maker_stack[1 << 16] __attribute__((aligned(16)));

/* Give the order socket the number that guest.py expects, after moving other descriptors out of the way. */
static int place_descriptors(struct cell *cell) {
    int *all[] = {&cell->streams[0], &cell->streams[1],   &cell->streams[2],
                  &cell->proc,       &cell->hidden[0],    &cell->order_socket};
    close(cell->hidden[1]);
    for (size_t which = 0; which < sizeof all / sizeof *all; which++) {
        *all[which] = fcntl(*all[which], F_DUPFD_CLOEXEC, 64);
        if (*all[which] < 0) return -1;
    }
    if (dup3(cell->order_socket, ORDER, O_CLOEXEC) < 0) return -1;
    cell->order_socket = ORDER;
    return 0;
}

/* Returns our parent's pid in the zygote's /proc; 0 if it can't be read. */
static int seen_parent(const struct cell *cell) {
    char text[1024];
    if (read_text(openat(cell->proc, "self/stat", O_RDONLY | O_CLOEXEC), text, sizeof text) < 0) return 0;
    const char *behind_the_name = strrchr(text, ')');
    int parent = 0;
    return behind_the_name && sscanf(behind_the_name, ") %*c %d", &parent) == 1 ? parent : 0;
}

/* Wait until init is out of the guest's sight: then the other end of this pipe is closed. */
static void wait_until_hidden(const struct cell *cell) {
    char nothing;
    while (read(cell->hidden[0], &nothing, 1) < 0 && errno == EINTR) continue;
}

static void __attribute__((noreturn)) become_guest(struct cell *cell) {
    struct zygote *zygote = (struct zygote *)cell->zygote; /* our own copy, since the fork */
    const char *user_namespaces;
    zygote->seed = cell->order->seed;
    zygote->ahead = cell->order->ahead;
    zygote->warm = cell->order->warm;
    memcpy(zygote->place, cell->order->place, sizeof zygote->place);
    if (place_descriptors(cell) < 0) {
        say_broken(cell->order_socket, "descriptors", errno);
        _exit(1);
    }
    if (zygote->lean) {
        wait_until_hidden(cell);
        TAKE(cell, ORDER, lean_guest_steps);
        probe_all_lean(cell, zygote->found, sizeof zygote->found);
        no_holder = 1;
        longjmp(*cell->guest, 1);
    }
    static struct probe early;
    early.cell = cell;
    if (cell->empty_proc) cell->init_seen = seen_parent(cell);
    TAKE(cell, ORDER, guest_first_steps);
    user_namespaces = probe_user_namespaces(&early);
    wait_until_hidden(cell);
    TAKE(cell, ORDER, guest_steps);
    probe_all(cell, zygote->found, sizeof zygote->found, user_namespaces);
    no_holder = cell->empty_proc;
    longjmp(*cell->guest, 1);
}

/* Close everything but the descriptors of init. Returns one of its program file, which closes on exec. */
static int only_the_control_socket(const struct cell *cell) {
    int view = fcntl(cell->proc, F_DUPFD_CLOEXEC, 64), program = VIEW + 1, control = fcntl(cell->control, F_DUPFD_CLOEXEC, 64);
    int hidden = fcntl(cell->hidden[1], F_DUPFD_CLOEXEC, 64), init = fcntl(cell->zygote->init, F_DUPFD_CLOEXEC, 64);
    if (view < 0 || control < 0 || hidden < 0 || init < 0) return -1;
    if (dup2(control, CONTROL) < 0 || dup2(hidden, HIDDEN) < 0 || dup2(view, VIEW) < 0 || dup3(init, program, O_CLOEXEC) < 0) return -1;
    if (syscall(NR_CLOSE_RANGE, program + 1, ~0u, 0) < 0) return -1;
    for (int number = 0; number < 3; number++) close(number);
    if (!cell->empty_proc && !cell->zygote->lean) close(VIEW); /* the cell's own /proc is enough */
    return program;
}

static int become_init(void *with) {
    struct cell *cell = with;
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigset_t deaths;
    sigaction(SIGCHLD, &plain, NULL); /* the zygote ignores it, and init waits for its children */
    sigemptyset(&deaths);
    sigaddset(&deaths, SIGINT); /* see cell_serve */
    sigaddset(&deaths, SIGCHLD);
    if (cell->zygote->lean) sigaddset(&deaths, SIGTERM);
    sigprocmask(SIG_SETMASK, &deaths, NULL); /* init reads the others from a signalfd */
    if (cell->zygote->lean) {
        TAKE(cell, cell->control, lean_init_steps);
    } else {
        TAKE(cell, cell->control, init_steps);
    }
    int pid = cell->zygote->fork();
    if (pid == 0) become_guest(cell);
    if (pid < 0) {
        say_broken(cell->control, "fork the guest", errno);
        _exit(1);
    }
    if (cell->zygote->lean) {
        TAKE(cell, cell->control, lean_init_last_steps);
    } else {
        TAKE(cell, cell->control, init_last_steps);
    }
    int init = only_the_control_socket(cell);
    char letters[20];
    snprintf(letters, sizeof letters, "%c%c%c%c%d", left_out(cell, "seccomp") ? 'f' : '-',
             left_out(cell, "memory-of-init") ? 'm' : '-', cell->empty_proc || cell->zygote->lean ? 'v' : '-',
             cell->zygote->lean ? 'l' : '-', cell->zygote->lean ? getppid() : 0);
    char *arguments[] = {"init", letters, NULL}, *environment[] = {NULL};
    if (init >= 0) syscall(SYS_execveat, init, "", arguments, environment, AT_EMPTY_PATH);
    say_broken(CONTROL, "execute init", errno);
    _exit(1);
}

static unsigned long namespaces(const struct cell *cell) {
    static const struct {
        const char *name;
        unsigned long flag;
    } optional[] = {{"net", CLONE_NEWNET}, {"ipc", CLONE_NEWIPC}, {"uts", CLONE_NEWUTS}};
    unsigned long flags = cell->zygote->namespaces & ~(unsigned long)(CLONE_NEWCGROUP | CLONE_NEWNS); /* lean: none */
    for (size_t which = 0; which < sizeof optional / sizeof *optional; which++)
        if (left_out(cell, optional[which].name)) flags &= ~optional[which].flag;
    return flags;
}

static struct view *view_for(const struct cell *cell) {
    char *stack_end = maker_stack + sizeof maker_stack;
    int shared = cell->zygote->shared || left_out(cell, "locks");
    return shared ? shared_view(cell->zygote->parts, stack_end) : own_view(cell->zygote->parts, stack_end);
}

/* Returns 0 if each cell can have its own view, else the errno of why not. Makes the first one. */
int cell_own_views(const struct zygote *zygote) {
    remember_files(zygote->parts);
    return own_view(zygote->parts, maker_stack + sizeof maker_stack) ? 0 : errno;
}

/* Make a cell. Returns in the zygote; the guest continues at `cell->guest`. */
static void make(struct cell *cell) {
    int init = -1;
    if (!cell->zygote->lean && !(cell->view = view_for(cell))) {
        say_broken(cell->control, "locks", errno);
        return;
    }
    if (pipe2(cell->hidden, O_CLOEXEC) < 0) {
        say_broken(cell->control, "pipe", errno);
        return;
    }
    unsigned long flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD | namespaces(cell);
    int pid = clone(become_init, maker_stack + sizeof maker_stack, (int)flags, cell, &init);
    if (pid < 0) {
        say_broken(cell->control, "clone", errno);
    } else {
        send_frame(cell->control, FRAME_INIT, "", init);
        if (cell->zygote->lean) {
            remember(pid);
            close(init);
        } else {
            give_view(cell->view, init);
        }
    }
    close(cell->hidden[0]);
    close(cell->hidden[1]);
}

/* --- the zygote --- */

/* Wait for an order. Returns its size and the descriptors that came with it; 0 if Redoma is gone. */
static ssize_t receive(const struct zygote *zygote, struct cell_order *order, int *descriptors, int *count) {
    char space[CMSG_SPACE(sizeof(int) * (DESCRIPTORS + MAX_GROUPS))] __attribute__((aligned(8)));
    struct pollfd both[2] = {{zygote->orders, POLLIN, 0}, {zygote->redoma, POLLIN, 0}};
    sigset_t waiting; /* for SIGCHLD, in a lean one */
    sigemptyset(&waiting);
    sigaddset(&waiting, SIGINT);
    while (ppoll(both, 2, NULL, zygote->lean ? &waiting : NULL) < 0 && errno == EINTR)
        if (zygote->lean) end_strays();
    *count = 0;
    if (both[1].revents) return 0;
    struct iovec piece = {order, sizeof *order};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    ssize_t size = recvmsg(zygote->orders, &message, MSG_CMSG_CLOEXEC);
    struct cmsghdr *with = size > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (with && with->cmsg_level == SOL_SOCKET && with->cmsg_type == SCM_RIGHTS) {
        *count = (int)((with->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(descriptors, CMSG_DATA(with), sizeof(int) * (size_t)*count);
    }
    return size;
}

static int is_whole(const struct cell_order *order, ssize_t size, int count) {
    return size == sizeof *order && count >= DESCRIPTORS && memchr(order->project, 0, sizeof order->project) &&
           memchr(order->layer, 0, sizeof order->layer) && memchr(order->place, 0, sizeof order->place) &&
           !strchr(order->layer, '/') && order->workspace <= OVERLAY && order->listen < 65536 &&
           (order->workspace == SCRATCH) == !order->project[0];
}

static void wake_up(int number) { (void)number; }

/* Make cells until Redoma is gone, then return 0. Returns 1 in each guest, which Python then arms. */
int cell_serve(struct zygote *zygote) {
    static jmp_buf guest;
    static struct cell cell;
    static struct cell_order order;
    remember_namespaces(zygote);
    struct sigaction no_waiting = {.sa_handler = zygote->lean ? wake_up : SIG_IGN, .sa_flags = SA_NOCLDWAIT};
    sigaction(SIGCHLD, &no_waiting, NULL); /* the kernel reaps the inits */
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);                       /* Python would note it, and every guest would find it noted */
    if (zygote->lean) sigaddset(&blocked, SIGCHLD); /* delivered only while it waits, so that none is missed */
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    for (;;) {
        int descriptors[DESCRIPTORS + MAX_GROUPS], count;
        ssize_t size = receive(zygote, &order, descriptors, &count);
        if (size <= 0) return 0;
        if (is_whole(&order, size, count) && zygote->lean == !!order.place[0]) {
            cell = (struct cell){.zygote = zygote, .order = &order, .layer = -1, .proc = -1, .guest = &guest};
            cell.control = descriptors[0];
            cell.order_socket = descriptors[1];
            memcpy(cell.streams, descriptors + 2, sizeof cell.streams);
            cell.group_count = count - DESCRIPTORS;
            memcpy(cell.groups, descriptors + DESCRIPTORS, sizeof(int) * (size_t)cell.group_count);
            if (setjmp(guest)) return 1;
            make(&cell);
        } else if (count) {
            say_broken(descriptors[0], "read the order", EINVAL);
        }
        for (int which = 0; which < count; which++) close(descriptors[which]);
    }
}

/* --- the holder --- */

static char holder_stack[4096] __attribute__((aligned(16)));
static volatile int holder_waits, guest_stays = 1;

/* What the holder can get no more of: processes, open files, memory. It needs none, and the limits of the run don't
 * reach it: those are set later, for the guest and what that forks. */
static const int nothing_more[] = {RLIMIT_NPROC, RLIMIT_NOFILE, RLIMIT_AS, RLIMIT_FSIZE};

static int hold(void *nothing) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    struct timespec moment = {.tv_nsec = 300000};
    struct rlimit none = {0, 0};
    (void)nothing;
    sigaction(SIGINT, &plain, NULL); /* Python's handler must not run here if the whole group is interrupted */
    syscall(NR_CLOSE_RANGE, 0, ~0u, 0);
    for (size_t which = 0; which < sizeof nothing_more / sizeof *nothing_more; which++)
        if (setrlimit(nothing_more[which], &none) < 0) _exit(1); /* lowering one never fails */
    holder_waits = 1;
    syscall(SYS_futex, &holder_waits, FUTEX_WAKE, 1, NULL, NULL, 0);
    while (guest_stays) syscall(SYS_futex, &guest_stays, FUTEX_WAIT, 1, NULL, NULL, 0);
    nanosleep(&moment, NULL); /* the kernel wakes us just before the guest leaves the memory; the last one frees it */
    return 0;
}

/* Start a process that shares the guest's memory and only waits. Returns its id; 0 where init could not recognise it, -1
 * with errno if it failed: then the cell is broken, because init takes the first process that the guest made for it.
 *
 * The kernel frees the memory of a process before it tells the parent that it has ended, which takes a millisecond or
 * more. As long as another process shares the memory there is nothing to free, so init learns of the end at once. The
 * holder is a child of init (CLONE_PARENT), has the guest's rights and no descriptors, and can make no process and open no
 * file. A guest that takes it over has gained less than by a fork. */
int cell_hold(void) {
    if (no_holder) return 0;
    int pid = clone(hold, holder_stack + sizeof holder_stack, CLONE_VM | CLONE_PARENT, NULL);
    while (pid > 0 && !holder_waits) syscall(SYS_futex, &holder_waits, FUTEX_WAIT, 0, NULL, NULL, 0);
    return pid;
}

/* Let the holder end as soon as the guest has executed a program. Then it frees the interpreter's memory, beside the
 * program: execve would take a millisecond longer if it had to. (The kernel clears this word, and wakes whoever waits
 * for it, when a process leaves memory that it shares.) */
void cell_release(void) { syscall(SYS_set_tid_address, &guest_stays); }

/* --- the helper of a program that is started ahead of its run --- */

struct limit {
    uint64_t resource, value;
};

static jmp_buf helper; /* where it continues: in cell_start, on the guest's former stack */

static int become_helper(void *nothing) {
    (void)nothing;
    while (guest_stays) syscall(SYS_futex, &guest_stays, FUTEX_WAIT, 1, NULL, NULL, 0);
    longjmp(helper, 1);
}

/* Execute a program in the guest, with these resource limits, and return in a helper. Returns 0 where this can't be
 * done, -1 with errno if it failed.
 *
 * The helper goes on with the interpreter that the guest leaves behind, and takes the place of a holder: it is a child
 * of init and has the guest's rights. It may touch that memory only when the guest has left it, so it waits for the
 * exec as the holder does. If a step fails, the guest reports that, and init ends both. */
int cell_start(const char *program, char *const arguments[], char *const environment[], const struct limit *limits, int count) {
    if (no_holder) return 0;
    if (setjmp(helper)) return 1;
    for (int which = 0; which < count; which++) { /* before the helper is made: they hold for that, too */
        struct rlimit both = {limits[which].value, limits[which].value};
        if (setrlimit(limits[which].resource, &both) < 0) return -1;
    }
    if (clone(become_helper, holder_stack + sizeof holder_stack, CLONE_VM | CLONE_PARENT, NULL) < 0) return -1;
    syscall(SYS_set_tid_address, &guest_stays);
    execve(program, arguments, environment);
    return -1;
}
