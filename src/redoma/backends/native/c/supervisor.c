/* The process between Redoma and a native command: it starts the command, watches it, and kills all its processes.
 *
 *     Redoma ──leash──▶ supervisor (adopts orphans) ──fork──▶ command ──▶ …
 *
 * Why a separate process: only a parent can adopt descendants that detach themselves (double fork, setsid), learn the
 * true exit status and resource usage, and set limits without running our code in a fork of a threaded program.
 *
 * The leash is a socket. If Redoma closes it or dies, the supervisor reads its end and kills everything. It also kills
 * everything when the command itself has ended, so a run leaves no process behind. Until then every byte on the leash is
 * the number of a signal for the command: only the parent knows whether the command's pid is still its own.
 *
 * It uses no C library: starting an interpreter, or even a program with a C library, takes longer than running `true`.
 */

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#include "../../c/raw.h"
#include "../../c/proc.h"
#include "supervisor.h"

#define ENOENT 2
#define E2BIG 7
#define ENOTDIR 20
#define ENOSYS 38
#define LOOK_MS 20 /* between two looks at the process tree */
#define MAX_ORDER (8 << 20) /* the kernel accepts 6 MiB of arguments and variables */
#define MAX_TEXTS (1 << 20)
#define MAX_TREE (1 << 20)
#define NOT_STARTED 127

/* --- the order --- */

static struct {
    struct order head;
    char text[MAX_ORDER];
} told;

static char *texts[MAX_TEXTS]; /* lists of strings, each ending with NULL */

struct command {
    const char *directory;
    char **paths, **arguments, **variables, **removal;
};

/* Take `count` strings from between `*place` and `end`. Returns their list, or NULL if there are fewer. */
static char **take_texts(uint32_t count, char **place, char *end, size_t *used) {
    char **list = texts + *used;
    if (count >= MAX_TEXTS - *used) return NULL;
    for (uint32_t which = 0; which < count; which++) {
        list[which] = *place;
        while (*place < end && **place) ++*place;
        if (*place == end) return NULL;
        ++*place;
    }
    list[count] = NULL;
    *used += count + 1;
    return list;
}

/* Returns 0 if the order is incomplete. */
static int parse_order(const struct order *head, char *text, size_t size, struct command *command) {
    char *place = text, *end = text + size;
    size_t used = 0;
    char **directory = take_texts(1, &place, end, &used);
    if (!directory) return 0;
    command->directory = *directory;
    return (command->paths = take_texts(head->paths, &place, end, &used)) &&
           (command->arguments = take_texts(head->arguments, &place, end, &used)) &&
           (command->variables = take_texts(head->variables, &place, end, &used)) &&
           (command->removal = take_texts(head->removal, &place, end, &used));
}

/* Read the order. Returns 0 if it is too long or incomplete. */
static int read_order(int file, struct command *command) {
    size_t length = 0;
    while (length < sizeof told) {
        long got = sys_read(file, (char *)&told + length, sizeof told - length);
        if (got == -EINTR) continue;
        if (got <= 0) break;
        length += (size_t)got;
    }
    if (length < sizeof told.head || length == sizeof told) return 0;
    return parse_order(&told.head, told.text, length - sizeof told.head, command);
}

/* Receive the descriptors that come with the first byte. Returns 0 if any is missing. */
static int take_descriptors(int leash, int *given) {
    char byte, space[CMSG_SPACE(GIVEN * sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec piece = {&byte, 1};
    struct msghdr message = {0};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    if (call(SYS_recvmsg, leash, (long)&message, MSG_CMSG_CLOEXEC, 0, 0) != 1) return 0;
    struct cmsghdr *with = CMSG_FIRSTHDR(&message);
    if (!with || with->cmsg_level != SOL_SOCKET || with->cmsg_type != SCM_RIGHTS ||
        with->cmsg_len != CMSG_LEN(GIVEN * sizeof(int)))
        return 0;
    for (int which = 0; which < GIVEN; which++) given[which] = ((int *)CMSG_DATA(with))[which];
    return 1;
}

static int send_report(int leash, const struct report *report) {
    size_t sent = 0;
    while (sent < sizeof *report) {
        long more = sys_sendto(leash, (const char *)report + sent, sizeof *report - sent, MSG_NOSIGNAL);
        if (more == -EINTR) continue;
        if (more <= 0) return 0;
        sent += (size_t)more;
    }
    return 1;
}

static int is_ready(int descriptor) {
    struct pollfd one = {descriptor, POLLIN, 0};
    return sys_poll(&one, 1, 0) > 0;
}

/* --- the command --- */

/* Reset all signals. Ignored and blocked signals are inherited: from Python, and from what started Redoma (nohup). */
static void plain_signals(void) {
    struct {
        void (*handler)(int);
        unsigned long flags;
        void (*restorer)(void);
        uint64_t mask;
    } plain = {0};
    uint64_t none = 0;
    for (int number = 1; number <= 64; number++) call(SYS_rt_sigaction, number, (long)&plain, 0, sizeof plain.mask, 0);
    call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof none, 0);
}

/* Set the rlimits, but never above our own. Returns 0 or a negative errno. */
static long limit(const struct order *order) {
    for (int which = 0; which < RLIMITS; which++) {
        uint64_t bound = order->rlimits[which][1], now[2];
        long number = (long)order->rlimits[which][0];
        long failed = call(SYS_prlimit64, 0, number, 0, (long)now, 0);
        if (failed < 0) return failed;
        if (bound > now[1]) bound = now[1]; /* RLIM_INFINITY is the largest number */
        uint64_t both[2] = {bound, bound};
        failed = call(SYS_prlimit64, 0, number, (long)both, 0, 0);
        if (failed < 0) return failed;
    }
    return 0;
}

/* Execute the first path that can be executed. Returns why none could; prefers an errno other than "not found". */
static long execute(const struct command *command) {
    long why = -ENOENT, first = 0;
    for (char **path = command->paths; *path; path++) {
        why = call(SYS_execve, (long)*path, (long)command->arguments, (long)command->variables, 0, 0);
        if (!first && why != -ENOENT && why != -ENOTDIR) first = why;
    }
    return first ? first : why;
}

/* In the child: set session, descriptors, directory and limits, then execute the command. Returns only on failure. All
 * other descriptors are close-on-exec. */
static struct report become(const struct command *command, const int *given, int leash, long parent) {
    struct report broken = {KIND_BROKEN, STEP_PREPARE, 0, 0, 0, 0};
    long failed = sys_prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (failed < 0 || call(SYS_getppid, 0, 0, 0, 0, 0) != parent) return broken; /* the parent died before the prctl */
    failed = call(SYS_setsid, 0, 0, 0, 0, 0);
    /* The group to kill if the supervisor is killed: reported before the command can do that. */
    struct report started = {KIND_STARTED, (uint32_t)call(SYS_getpid, 0, 0, 0, 0, 0), 0, 0, 0, 0};
    if (failed >= 0) send_report(leash, &started);
    for (int number = 0; number < 3 && failed >= 0; number++)
        failed = call(SYS_dup3, given[GIVEN_STDIN + number], number, 0, 0, 0);
    if (failed >= 0 && told.head.has_source) failed = call(SYS_dup3, given[GIVEN_SOURCE], SOURCE_FD, 0, 0, 0);
    plain_signals();
    if (failed >= 0) {
        broken.number = STEP_ENTER;
        failed = call(SYS_chdir, (long)command->directory, 0, 0, 0, 0);
    }
    if (failed >= 0) {
        broken.number = STEP_LIMIT;
        failed = limit(&told.head);
    }
    if (failed >= 0) {
        broken.number = STEP_START;
        failed = execute(command);
    }
    broken.why = (uint32_t)-failed;
    return broken;
}

/* Move a descriptor to a higher number, because the command needs the low ones. Returns it, or a negative errno. */
static long out_of_the_way(int descriptor) {
    long moved = call(SYS_fcntl, descriptor, F_DUPFD_CLOEXEC, SOURCE_FD + 1, 0, 0);
    sys_close(descriptor);
    return moved;
}

/* Fork the command. Returns its pid, or a negative errno. `*broken` becomes a pipe that is closed when the command has
 * been executed; if that fails, it contains a report. */
static long start(const struct command *command, const int *given, int leash, int *broken) {
    int pipe[2];
    long failed = call(SYS_pipe2, (long)pipe, O_CLOEXEC, 0, 0, 0), parent = call(SYS_getpid, 0, 0, 0, 0, 0);
    if (failed < 0) return failed;
    long tell = out_of_the_way(pipe[1]);
    if (tell < 0) return tell;
    long pid = call(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        struct report report = become(command, given, leash, parent);
        call(SYS_write, tell, (long)&report, sizeof report, 0, 0);
        for (;;) call(SYS_exit_group, NOT_STARTED, 0, 0, 0, 0);
    }
    sys_close((int)tell);
    for (int which = GIVEN_SOURCE; which <= GIVEN_STDERR; which++) sys_close(given[which]); /* else they never reach EOF */
    *broken = pipe[0];
    return pid;
}

/* --- the tree of processes --- */

static uint32_t tree[MAX_TREE]; /* parents before their children */
static uint32_t tree_size;
static int tree_is_cut;

/* Add the numbers in a piece of a list. The last may be cut off: `*unfinished` carries it over to the next piece. */
static void add_numbers(const char *piece, size_t size, uint64_t *unfinished) {
    for (size_t place = 0; place < size; place++) {
        if (piece[place] >= '0' && piece[place] <= '9' && *unfinished < UINT32_MAX / 10) {
            *unfinished = *unfinished * 10 + (uint64_t)(piece[place] - '0');
            continue;
        }
        if (*unfinished && tree_size < MAX_TREE) tree[tree_size++] = (uint32_t)*unfinished;
        else if (*unfinished) tree_is_cut = 1;
        *unfinished = 0;
    }
}

static void add_children_of_thread(const char *path) {
    char piece[4096];
    uint64_t unfinished = 0;
    long file = sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC), size;
    if (file < 0) return; /* it has ended since */
    while ((size = sys_read((int)file, piece, sizeof piece)) > 0) add_numbers(piece, (size_t)size, &unfinished);
    add_numbers(" ", 1, &unfinished);
    sys_close((int)file);
}

static char *append(char *place, const char *text) {
    while (*text) *place++ = *text++;
    return place;
}

/* Add the children of every thread of a process to the tree; none if it has ended since. */
static void add_children_of(uint32_t pid) {
    char path[96], entries[4096] __attribute__((aligned(8)));
    char *end = append(write_number(append(path, "/proc/"), pid), "/task/");
    *end = 0;
    long directory = sys_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), size;
    if (directory < 0) return;
    while ((size = sys_getdents64((int)directory, entries, sizeof entries)) > 0) {
        for (long at = 0; at < size;) {
            const char *name = entries + at + 19; /* after inode, offset, length and type */
            uint16_t length = (uint16_t)((unsigned char)entries[at + 16] | (unsigned char)entries[at + 17] << 8);
            if (*name >= '1' && *name <= '9') {
                char *rest = append(write_number(end, read_number(name, entries + at + length)), "/children");
                *rest = 0;
                add_children_of_thread(path);
            }
            at += length;
        }
    }
    sys_close((int)directory);
}

static void look_at_children(void) {
    tree_size = 0;
    tree_is_cut = 0;
    add_children_of((uint32_t)call(SYS_getpid, 0, 0, 0, 0, 0));
}

static void look_at_tree(void) {
    look_at_children();
    for (uint32_t next = 0; next < tree_size; next++) add_children_of(tree[next]);
}

/* Memory of the tree in bytes. A cheap sum first; shared pages are counted proportionally only if that is too much. */
static uint64_t memory_of_tree(uint64_t limit) {
    uint64_t total = 0;
    for (uint32_t which = 0; which < tree_size; which++) total += resident(tree[which]);
    if (total <= limit) return total;
    total = 0;
    for (uint32_t which = 0; which < tree_size; which++) total += proportional(tree[which]);
    return total;
}

/* Processor time of the tree and of the children that its processes have reaped; an unreaped child is still in the tree.
 * Parents are read before their children, so a child that ends in between is missed once, never counted twice. */
static uint64_t cpu_us_of_tree(void) {
    uint64_t ticks = 0;
    for (uint32_t which = 0; which < tree_size; which++) {
        char text[1024];
        struct stat_fields fields;
        size_t size = read_of_process(tree[which], "stat", text, sizeof text);
        if (size && parse_stat(text, size, &fields) == 0)
            ticks += fields.utime + fields.stime + fields.cutime + fields.cstime;
    }
    return ticks * (1000000 / TICKS_PER_SECOND);
}

/* --- watching --- */

static uint64_t peak, used_us;

static enum cause excess(const struct order *order) {
    look_at_tree();
    uint64_t memory = memory_of_tree(order->memory), cpu_us = cpu_us_of_tree();
    if (memory > peak) peak = memory;
    if (cpu_us > used_us) used_us = cpu_us;
    if (memory > order->memory) return CAUSE_MEMORY;
    if (tree_is_cut || tree_size > order->processes) return CAUSE_PROCESSES;
    return used_us > order->cpu_us ? CAUSE_CPU : CAUSE_NONE;
}

/* Pass the next signal on to the command, which has not been reaped. Returns 0 when the leash was closed. If the command
 * has changed its user, as sudo does, the signal is refused; that is ignored. */
static int pass_on(int leash, long pid) {
    unsigned char number;
    long got = sys_recvfrom(leash, &number, 1);
    if (got == -EINTR) return 1;
    if (got <= 0) return 0;
    sys_kill((int)pid, number);
    return 1;
}

/* Watch until the command has ended, or there is a reason to end it. */
static enum cause watch(const struct order *order, int leash, int redoma, int command, long pid) {
    /* Also poll Redoma's own pidfd: a fork of Redoma may hold the other end of the leash open. */
    struct pollfd all[3] = {{command, POLLIN, 0}, {leash, POLLIN, 0}, {redoma, POLLIN, 0}};
    uint64_t due = now_ms() + LOOK_MS;
    for (;;) {
        uint64_t now = now_ms();
        if (now >= due) { /* not only if poll timed out: a stream of signals would switch the limits off */
            enum cause cause = excess(order);
            if (cause != CAUSE_NONE) return cause;
            now = now_ms();
            due = now + LOOK_MS;
        }
        if (sys_poll(all, 3, (int)(due - now)) <= 0) continue;
        if (all[0].revents) return CAUSE_NONE;
        if (all[2].revents || (all[1].revents && !pass_on(leash, pid))) return CAUSE_LEASH;
    }
}

static uint64_t microseconds(const struct timeval *time) {
    return (uint64_t)time->tv_sec * 1000000 + (uint64_t)time->tv_usec;
}

/* Run the command until it ends, the leash is closed, Redoma dies, or its processes together exceed a limit. */
static struct report supervise(const struct command *command, const int *given, int leash) {
    struct report report = {KIND_BROKEN, STEP_PREPARE, 0, 0, 0, 0}, failure;
    int broken;
    long pid = start(command, given, leash, &broken), ended = pid < 0 ? pid : call(SYS_pidfd_open, pid, 0, 0, 0, 0);
    if (ended < 0) {
        report.why = (uint32_t)-ended;
        return report;
    }
    enum cause cause = watch(&told.head, leash, given[GIVEN_REDOMA], (int)ended, pid);
    if (cause != CAUSE_NONE) {
        sys_kill((int)-pid, SIGKILL); /* not reaped yet, so the pid is still its own */
        sys_kill((int)pid, SIGKILL);  /* it may not have its own group yet */
    }
    int status = 0;
    struct rusage usage = {0};
    while (call(SYS_wait4, pid, (long)&status, 0, (long)&usage, 0) == -EINTR) continue;
    if (sys_read(broken, &failure, sizeof failure) == sizeof failure) return failure;
    uint64_t resident_bytes = (uint64_t)usage.ru_maxrss * 1024;
    uint64_t waited_us = microseconds(&usage.ru_utime) + microseconds(&usage.ru_stime);
    report.kind = KIND_ENDED;
    report.number = (uint32_t)status;
    report.memory = resident_bytes > peak ? resident_bytes : peak;
    report.cpu_us = waited_us > used_us ? waited_us : used_us;
    /* It may have exceeded its memory and failed between two looks. */
    if (cause == CAUSE_NONE && status != 0 && report.memory > told.head.memory) cause = CAUSE_MEMORY;
    report.why = cause;
    return report;
}

/* --- the end --- */

/* Kill until there is no child left. Orphans become our children, so the loop reaches every generation. */
static void kill_descendants(void) {
    for (;;) {
        int status;
        long reaped = sys_wait4(-1, &status, WNOHANG);
        if (reaped < 0 && reaped != -EINTR) return;
        look_at_children();
        for (uint32_t which = 0; which < tree_size; which++)
            sys_kill((int)tree[which], SIGKILL); /* a child that is not reaped: the pid is still its own */
        if (!reaped) sys_poll(NULL, 0, 1);
    }
}

/* Close everything but the leash, and leave the current directory. Returns the leash's descriptor, or -1. */
static int settle(void) {
    long leash = out_of_the_way(LEASH);
    if (leash < 0 || sys_prctl(PR_SET_DUMPABLE, 0) < 0 || sys_prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) return -1;
    if (call(SYS_close_range, 0, leash - 1, 0, 0, 0) == -ENOSYS || call(SYS_close_range, leash + 1, UINT32_MAX, 0, 0, 0) < 0)
        for (int number = 0; number < 1 << 16; number++) /* Linux before 5.9 */
            if (number != leash) sys_close(number);
    if (call(SYS_chdir, (long)"/", 0, 0, 0, 0) < 0) return -1;
    return (int)leash;
}

int run_program(const char *argument) {
    (void)argument;
    static struct command command;
    int given[GIVEN], leash = settle();
    char byte;
    if (leash < 0 || !take_descriptors(leash, given)) return 1;
    for (int which = 0; which < GIVEN; which++) {
        given[which] = (int)out_of_the_way(given[which]);
        if (given[which] < 0) return 1;
    }
    struct report report = {KIND_BROKEN, STEP_START, E2BIG, 0, 0, 0};
    if (read_order(given[GIVEN_ORDER], &command)) {
        if (call(SYS_recvfrom, leash, (long)&byte, 1, MSG_PEEK | MSG_DONTWAIT, 0) == 0) return 0; /* closed already */
        report = supervise(&command, given, leash);
    }
    kill_descendants();
    int told_redoma = send_report(leash, &report);
    /* If Redoma is gone, it can't remove the run's directory: do it here. */
    if ((!told_redoma || is_ready(given[GIVEN_REDOMA])) && command.removal && *command.removal)
        call(SYS_execve, (long)*command.removal, (long)command.removal, (long)(char *[]){NULL}, 0, 0);
    return 0;
}
