/* Pid 1 of a cell: waits for the guest, watches limits, kills everything at the end, and reports.
 *
 * It alone decides how a run ended: the status of a run is what wait(2) returned to it. It is a separate program,
 * executed by the process that made the cell, so it shares no memory with the zygote or the guest, and its environment
 * and arguments reveal nothing. It has one descriptor of ours, the control socket. It uses no C library and only a few
 * pages of memory, so that a cell costs little.
 *
 * It reads from Redoma (the control socket), from the kernel (/proc), and from the guest (the report, which it passes
 * on unread). When it ends, for whatever reason, the kernel kills everything else in its pid namespace.
 *
 * A lean cell has no pid namespace. There init adopts every orphan, and kill(-1) reaches only the cell, because of its
 * user id or its Landlock domain (see cell.c). It kills everything before it ends itself.
 *
 * If the cell's own /proc is empty, or shows other processes, too, init reads the /proc at VIEW, and only about
 * processes that it is an ancestor of.
 */

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
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
#include "cell.h"

#define LOOK_MS 100       /* between checks of what the cell uses */
#define LOOK_OFTEN_MS 10  /* the same, if only we limit its memory */
#define LATE_MS 500       /* how much later than the guest's our order may come */
#define VERY_LATE_MS 30000 /* the same, if the guest has exited by itself: then it had its order */
#define AGAIN_MS 10        /* between two signals to everything, while it ends */
#define GIVE_WAY_MS 3      /* until we end after our report, unless Redoma hangs up before */
#define MAX_PROCESSES 32768

/* --- small tools --- */

static uint32_t self_seen = PID_INIT, guest_seen = PID_GUEST; /* our and the guest's pid in the /proc that we read */
static uint32_t guest_pid = PID_GUEST;                        /* the guest's pid in our namespace */
static int lean;                                              /* there is no pid namespace */

static int send_all(const void *data, size_t size) {
    const char *place = data;
    while (size) {
        long sent = sys_sendto(CONTROL, place, size, MSG_NOSIGNAL);
        if (sent == -EINTR) continue;
        if (sent <= 0) return -1;
        place += sent;
        size -= (size_t)sent;
    }
    return 0;
}

/* --- what the cell uses, from /proc --- */

/* A process, and the processor time that it had used when last seen. */
struct seen {
    uint32_t pid;
    uint64_t started; /* ticks since boot: distinguishes processes with a reused pid */
    uint64_t used;    /* its own ticks */
    int shares;       /* it shares the guest's memory, as the holder does */
};

static struct {
    struct seen processes[2][MAX_PROCESSES];
    int now; /* which of the two was filled last */
    uint32_t count;
    uint64_t gone; /* ticks of processes that were seen and have ended */
} table;

struct usage {
    uint64_t cpu_us;
    uint64_t threads;
    uint64_t memory;
    int too_many; /* more processes than fit into the table or the tree */
};

static uint64_t peak;       /* bytes of memory, if we count them */
static uint64_t armed_us;   /* what the guest had used before its run */
static uint64_t counted_us; /* the largest count so far */
static int holder_lives = 1;

/* Returns the bytes in the cell's own file systems, which are memory, too. */
static uint64_t files(void) {
    static const char *const places[] = {"workspace", "run"};
    uint64_t total = 0;
    if (lean) return 0; /* its files are on a disk of the host */
    for (int which = 0; which < 2; which++) {
        struct statfs about;
        if (sys_statfs(places[which], &about) < 0) continue;
        total += (uint64_t)(about.f_blocks - about.f_bfree) * (uint64_t)about.f_bsize;
    }
    return total;
}

/* Call `take` with each process id in a piece of a listing of /proc, as from getdents64. Stops if it returns non-zero.
 * */
static int each_process(const char *entries, long size, int (*take)(uint32_t, void *), void *with) {
    for (long place = 0; place + 19 < size;) {
        uint16_t length = (uint16_t)((unsigned char)entries[place + 16] | (unsigned char)entries[place + 17] << 8);
        const char *name = entries + place + 19, *end = entries + place + length;
        if (length < 20 || place + length > size) return 0; /* malformed */
        if (*name >= '1' && *name <= '9') {
            uint64_t pid = read_number(name, end);
            if (pid > PID_INIT && pid < UINT32_MAX && take((uint32_t)pid, with)) return 1;
        }
        place += length;
    }
    return 0;
}

/* Our descendants. `max`: the search ends with so many. A cell may fork faster than we can list what it has forked. */
static struct {
    uint32_t pids[MAX_PROCESSES];
    uint32_t count, max;
    int was_full; /* before duplicates were removed */
    int failed;   /* something could not be read, other than of a process that has ended */
} tree = {.max = MAX_PROCESSES};

static void add_to_tree(uint64_t pid) {
    if (pid && pid < UINT32_MAX && tree.count < tree.max) tree.pids[tree.count++] = (uint32_t)pid;
}

static int tree_is_full(void) { return tree.count >= tree.max; }

/* Set how many processes are enough to know that the cell has too many. Some that were listed may have ended before
 * others began, and those are no reason to end a run. */
static void bound_tree(uint32_t processes) {
    tree.max = processes && processes < (MAX_PROCESSES - 256) / 2 ? 2 * processes + 256 : MAX_PROCESSES;
}

/* Add numbers separated by spaces. A piece may end in the middle of one: `partial` carries its beginning over. */
static void add_numbers(const char *text, size_t size, uint64_t *partial) {
    for (const char *end = text + size; text < end; text++) {
        if (*text >= '0' && *text <= '9') {
            if (*partial < UINT32_MAX) *partial = *partial * 10 + (uint64_t)(*text - '0');
        } else {
            add_to_tree(*partial);
            *partial = 0;
        }
    }
}

static int note_failure(long result) {
    if (result < 0 && result != -ENOENT && result != -ESRCH) tree.failed = 1;
    return 0;
}

/* Add the children of one thread. `with` points to the pid of its process. */
static int add_children(uint32_t thread, void *with) {
    static char piece[4096];
    char path[64], *end = write_number(path, *(const uint32_t *)with);
    uint64_t partial = 0;
    end = write_number(write_text(end, "/task/"), thread);
    write_text(end, "/children");
    long file = sys_openat(proc_view, path, O_RDONLY | O_CLOEXEC), got = 0;
    if (file < 0) return note_failure(file); /* if it has ended meanwhile, its children are ours now */
    while (!tree_is_full() && (got = sys_read((int)file, piece, sizeof piece)) > 0) add_numbers(piece, (size_t)got, &partial);
    note_failure(got);
    sys_close((int)file);
    add_to_tree(partial);
    return tree_is_full();
}

/* Sort them and remove duplicates: one whose parent has just ended may have been found twice. */
static void sort_tree(void) {
    uint32_t *pids = tree.pids, kept = 0;
    for (uint32_t gap = tree.count / 2; gap; gap /= 2) {
        for (uint32_t next = gap; next < tree.count; next++) {
            uint32_t pid = pids[next], place = next;
            for (; place >= gap && pids[place - gap] > pid; place -= gap) pids[place] = pids[place - gap];
            pids[place] = pid;
        }
    }
    for (uint32_t which = 0; which < tree.count; which++)
        if (!kept || pids[kept - 1] != pids[which]) pids[kept++] = pids[which];
    tree.count = kept;
}

/* Find all our descendants: the children of each thread of each process, beginning with our own. */
static void grow_tree(void) {
    static char entries[4096] __attribute__((aligned(8)));
    tree.count = 0;
    tree.failed = 0;
    add_children(self_seen, &self_seen); /* we have one thread */
    for (uint32_t which = 0; which < tree.count && !tree_is_full(); which++) {
        char path[32];
        write_text(write_number(path, tree.pids[which]), "/task");
        long directory = sys_openat(proc_view, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), size = 0;
        note_failure(directory);
        if (directory < 0) continue;
        while (!tree_is_full() && (size = sys_getdents64((int)directory, entries, sizeof entries)) > 0)
            each_process(entries, size, add_children, &tree.pids[which]);
        note_failure(size);
        sys_close((int)directory);
    }
    tree.was_full = tree_is_full();
    sort_tree();
}

static int all_in_tree(int (*take)(uint32_t, void *), void *with) {
    grow_tree();
    for (uint32_t which = 0; which < tree.count; which++)
        if (take(tree.pids[which], with)) return 1;
    return tree.failed ? -1 : 0;
}

/* Call `take` for every process of the cell except us, by its pid in /proc, in ascending order. Returns 0 after the last
 * one, 1 if `take` has stopped it, -1 if not all could be listed. */
static int all_processes(int (*take)(uint32_t, void *), void *with) {
    if (proc_view >= 0) return all_in_tree(take, with);
    static char entries[16384] __attribute__((aligned(8)));
    long directory = sys_openat(AT_FDCWD, "/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC), size;
    int stopped = 0;
    if (directory < 0) return -1;
    while (!stopped && (size = sys_getdents64((int)directory, entries, sizeof entries)) > 0)
        stopped = each_process(entries, size, take, with);
    sys_close((int)directory);
    return stopped ? 1 : size < 0 ? -1 : 0;
}

struct look {
    struct usage *usage;
    uint64_t ticks; /* of processes, and of children that they have reaped */
    uint32_t before, old_count;
    const struct seen *old;
    uint64_t guest_stack;
};

/* Add up the processes of the last check that come before `pid` and were not seen again: they have ended. The kernel
 * lists processes by pid, so both lists are sorted. */
static const struct seen *skip_ended(struct look *look, uint32_t pid) {
    while (look->before < look->old_count && look->old[look->before].pid < pid) table.gone += look->old[look->before++].used;
    if (look->before == look->old_count || look->old[look->before].pid != pid) return NULL;
    return &look->old[look->before++];
}

static int look_at(uint32_t pid, void *with) {
    struct look *look = with;
    struct stat_fields fields;
    static char text[1024];
    size_t size = read_of_process(pid, "stat", text, sizeof text);
    if (!size || parse_stat(text, size, &fields) < 0) return 0; /* it has ended meanwhile */
    if (table.count == MAX_PROCESSES) {
        look->usage->too_many = 1;
        return 1;
    }
    uint64_t own = fields.utime + fields.stime;
    const struct seen *known = skip_ended(look, pid);
    if (known && known->started != fields.started) {
        table.gone += known->used; /* another process with the same pid */
        known = NULL;
    }
    if (known && known->used > own) own = known->used;
    if (pid == guest_seen) look->guest_stack = fields.stack;
    /* The helper of a shell doesn't share its memory, and if there is no holder, another process may have its pid. Those
     * have stacks of their own. The kernel chose the address of each, and the filter doesn't let a process move it. */
    int shares = pid == PID_HOLDER && holder_lives && fields.stack && fields.stack == look->guest_stack;
    table.processes[table.now][table.count++] = (struct seen){pid, fields.started, own, shares};
    look->ticks += fields.utime + fields.stime + fields.cutime + fields.cstime;
    look->usage->threads += fields.threads - (uint64_t)shares;
    return 0;
}

static uint64_t microseconds(const struct timeval *time) {
    return (uint64_t)time->tv_sec * 1000000 + (uint64_t)time->tv_usec;
}

static uint64_t waited_for_us(long *max_resident_kb) {
    struct rusage usage;
    sys_getrusage(RUSAGE_CHILDREN, &usage);
    if (max_resident_kb) *max_resident_kb = usage.ru_maxrss;
    return microseconds(&usage.ru_utime) + microseconds(&usage.ru_stime);
}

/* Returns the processor time, as the larger of two counts. Children that were reaped count for their parent. But a
 * process that ignores SIGCHLD doesn't reap, and then only the sum of what was seen of each process is right. */
static void look_at_all(struct usage *usage) {
    const uint64_t us_per_tick = 1000000 / TICKS_PER_SECOND;
    struct look look = {usage, 0, 0, table.count, table.processes[table.now], 0};
    table.now = !table.now;
    table.count = 0;
    all_processes(look_at, &look);
    if (tree.was_full) usage->too_many = 1;
    skip_ended(&look, UINT32_MAX);
    uint64_t seen = table.gone;
    for (uint32_t which = 0; which < table.count; which++) seen += table.processes[table.now][which].used;
    uint64_t waited = waited_for_us(NULL) + look.ticks * us_per_tick;
    uint64_t used = seen * us_per_tick > waited ? seen * us_per_tick : waited;
    used = used > armed_us ? used - armed_us : 0;
    if (used > counted_us) counted_us = used;
    usage->cpu_us = counted_us;
}

/* Memory of the cell. A cheap sum first; pages shared with the zygote are counted proportionally only if that is too
 * much. */
static uint64_t memory_used(uint64_t limit) {
    const struct seen *processes = table.processes[table.now];
    uint64_t in_files = files(), total = in_files;
    for (uint32_t which = 0; which < table.count; which++)
        if (!processes[which].shares) total += resident(processes[which].pid);
    if (total <= limit) return total;
    total = in_files;
    for (uint32_t which = 0; which < table.count; which++)
        if (!processes[which].shares) total += proportional(processes[which].pid);
    return total;
}

/* Returns which limit the whole cell exceeds, or none. */
static enum cause excess(const struct run_order *order) {
    struct usage usage = {0};
    look_at_all(&usage);
    if (usage.cpu_us > order->cpu_us) return CAUSE_CPU;
    if (usage.too_many || (order->processes && usage.threads > order->processes)) return CAUSE_PROCESSES;
    if (!order->watched) return CAUSE_NONE;
    uint64_t memory = memory_used(order->memory);
    if (memory > peak) peak = memory;
    return memory > order->memory ? CAUSE_MEMORY : CAUSE_NONE;
}

/* --- ending it --- */

static struct {
    int ended; /* its status is known */
    int status;
    int reaped;
    struct rusage usage; /* if it has ended and is not reaped */
} guest;

/* Reap children that have ended; every orphan of the cell is our child. A limited number at a time, so that a flood of
 * them can't keep us busy. */
enum left { NONE_LEFT, NONE_ENDED, MORE_ENDED };
static enum left reap(void) {
    for (int count = 0; count < 1000; count++) {
        int status;
        long pid = sys_wait4(-1, &status, WNOHANG);
        if (pid < 0) return NONE_LEFT;
        if (pid == 0) return NONE_ENDED;
        if (pid == PID_HOLDER) holder_lives = 0;
        if (pid == guest_pid && !guest.reaped) { /* afterwards another process may have its pid */
            guest.reaped = guest.ended = 1;
            guest.status = status;
        }
    }
    return MORE_ENDED;
}

/* Returns whether the guest has ended. If it hasn't, reaps others that have.
 *
 * The guest itself is not reaped: the kernel does that when we end, and takes as long for it as we do for all the rest
 * of a short run. */
static int guest_has_ended(void) {
    siginfo_t about = {0};
    if (guest.ended) return 1;
    if (sys_waitid(P_PID, (int)guest_pid, &about, WEXITED | WNOHANG | WNOWAIT, &guest.usage) == 0 && about.si_pid) {
        guest.ended = 1; /* the status is put together as wait(2) returns it */
        guest.status = about.si_code == CLD_EXITED ? (about.si_status & 0xff) << 8 : about.si_status;
        if (about.si_code == CLD_DUMPED) guest.status |= 0x80;
    } else {
        reap();
    }
    return guest.ended;
}

/* Read a signal. Returns its number; 0 if there is none. */
static uint32_t read_signal(int signals) {
    uint32_t told[32] = {0}; /* struct signalfd_siginfo: the number of the signal comes first */
    return sys_read(signals, told, sizeof told) > 0 ? told[0] : 0;
}

/* Returns whether a process is another one than the holder and the guest, which has ended and may not be reaped. */
static int is_another(uint32_t pid, void *with) {
    (void)with;
    return !(pid == PID_HOLDER && holder_lives) && !(pid == guest_seen && !guest.reaped);
}

/* Returns whether nothing can be sent or changed in the cell that anybody will read. The guest has ended, and only the
 * holder is there: it has no descriptors, can open no file and can't fork, so it can live until we end. A helper could, so it is killed first: with
 * SIGKILL pending, a process runs no more code of its own. */
static int all_is_quiet(int helper) {
    if (!guest.ended) return 0;
    if (helper && holder_lives) sys_kill(PID_HOLDER, SIGKILL);
    return all_processes(is_another, NULL) == 0;
}

/* Kill everything but us, and wait until it is gone. */
static void end_all(int deaths) {
    sys_kill(-1, SIGKILL);
    struct pollfd one = {deaths, POLLIN, 0};
    uint64_t killed = now_ms();
    for (enum left left; (left = reap()) != NONE_LEFT;) {
        /* The signal visits every process of the machine, so it is not repeated for each that has ended: a cell may
         * leave tens of thousands. */
        if (now_ms() - killed >= AGAIN_MS) {
            sys_kill(-1, SIGKILL);
            killed = now_ms();
        }
        if (left == NONE_ENDED && sys_poll(&one, 1, AGAIN_MS) > 0) read_signal(deaths);
    }
}

/* --- reporting --- */

/* Send the guest's report, if it is a file of acceptable size. Only a holder that the guest has taken over could still
 * change it: if it truncates the file, zeros fill the rest, and the report is invalid. */
static void send_report(uint32_t max_size) {
    static char buffer[FRAME_HEADER + 16384];
    struct stat about;
    long file = sys_openat(AT_FDCWD, "run/report", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return;
    if (sys_fstat((int)file, &about) < 0 || !S_ISREG(about.st_mode) || about.st_size <= 0 ||
        (uint64_t)about.st_size > max_size) {
        sys_close((int)file);
        return;
    }
    size_t left = (size_t)about.st_size, used = FRAME_HEADER;
    put_header(buffer, FRAME_REPORT, (uint32_t)left);
    while (left) {
        size_t room = sizeof buffer - used, wanted = left < room ? left : room;
        long got = sys_read((int)file, buffer + used, wanted);
        if (got <= 0) {
            for (size_t byte = 0; byte < wanted; byte++) buffer[used + byte] = 0;
            got = (long)wanted;
        }
        used += (size_t)got;
        left -= (size_t)got;
        if (used == sizeof buffer || !left) {
            if (send_all(buffer, used) < 0) return;
            used = 0;
        }
    }
    sys_close((int)file);
}

/* Send a descriptor of the workspace, from which Redoma reads output files. Everything else in the cell is dead. */
static void send_workspace(void) {
    char header[FRAME_HEADER], space[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    sys_fchmodat(AT_FDCWD, "workspace", 0700); /* the guest may have changed its mode */
    long directory = sys_openat(AT_FDCWD, "workspace", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0) return;
    put_header(header, FRAME_FILES, 0);
    struct iovec piece = {header, sizeof header};
    struct msghdr message = {0};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    attach_descriptor(&message, space, (int)directory);
    sys_sendmsg(CONTROL, &message, MSG_NOSIGNAL);
    sys_close((int)directory);
}

static void send_verdict(enum cause cause) {
    struct {
        char before[8 - FRAME_HEADER]; /* keeps the verdict aligned */
        char header[FRAME_HEADER];
        struct verdict verdict;
    } frame;
    long max_resident_kb;
    uint64_t waited = waited_for_us(&max_resident_kb);
    if (guest.ended && !guest.reaped) {
        waited += microseconds(&guest.usage.ru_utime) + microseconds(&guest.usage.ru_stime);
        if (guest.usage.ru_maxrss > max_resident_kb) max_resident_kb = guest.usage.ru_maxrss;
    }
    uint64_t memory = (uint64_t)max_resident_kb * 1024;
    waited = waited > armed_us ? waited - armed_us : 0;
    put_header(frame.header, FRAME_VERDICT, sizeof frame.verdict);
    frame.verdict.status = (uint32_t)guest.status;
    frame.verdict.cause = cause;
    frame.verdict.cpu_us = waited > counted_us ? waited : counted_us;
    frame.verdict.memory = memory > peak ? memory : peak;
    send_all(frame.header, sizeof frame.header + sizeof frame.verdict);
}

/* --- its life --- */

static int readable(int descriptor, int milliseconds) {
    struct pollfd one = {descriptor, POLLIN, 0};
    return sys_poll(&one, 1, milliseconds) > 0;
}

/* Let Redoma go on first, which it usually does on our processor. There the kernel would now spend up to a millisecond on
 * freeing the memory that the holder has kept, and on our namespaces. */
static void give_way(void) { readable(CONTROL, GIVE_WAY_MS); }

/* In a lean cell, SIGTERM reports the zygote's end, or Redoma ends the cell by it. */
static int zygote_ended(int signals) { return read_signal(signals) == SIGTERM; }

/* Wait for the order. Returns whether there is one. A guest may have ended before our order comes; but none comes if it
 * was killed before a run used it. */
static int await_order(int deaths, struct run_order *order) {
    struct pollfd both[2] = {{CONTROL, POLLIN, 0}, {deaths, POLLIN, 0}};
    while (!(both[0].revents)) {
        sys_poll(both, 2, -1);
        if (both[1].revents) {
            if (zygote_ended(deaths)) return 0;
            if (!guest_has_ended()) continue;
            if (!readable(CONTROL, WIFEXITED(guest.status) ? VERY_LATE_MS : LATE_MS)) return 0;
            break;
        }
    }
    for (size_t length = 0; length < sizeof *order;) {
        long got = sys_recvfrom(CONTROL, (char *)order + length, sizeof *order - length);
        if (got == -EINTR) continue;
        if (got <= 0) return 0; /* never used, or broken before: Redoma knows why */
        length += (size_t)got;
    }
    return 1;
}

/* Watch the run. Returns a reason to end it, or none if the guest has ended by itself; -1 if Redoma is gone. */
static int watch(int deaths, const struct run_order *order) {
    struct pollfd both[2] = {{CONTROL, POLLIN, 0}, {deaths, POLLIN, 0}};
    int pause = order->watched ? LOOK_OFTEN_MS : LOOK_MS;
    uint64_t due = now_ms() + (uint64_t)pause;
    bound_tree(order->processes);
    for (;;) {
        if (guest_has_ended()) return CAUSE_NONE;
        uint64_t now = now_ms();
        if (now >= due) {
            enum cause cause = excess(order);
            if (cause != CAUSE_NONE) return (int)cause;
            due = now_ms() + (uint64_t)pause;
            continue;
        }
        if (sys_poll(both, 2, (int)(due - now)) <= 0) continue;
        if (both[1].revents) {
            if (zygote_ended(deaths)) return -1;
            if (guest_has_ended()) return CAUSE_NONE;
        }
        if (both[0].revents) {
            unsigned char word;
            long got = sys_recvfrom(CONTROL, &word, 1);
            if (got == -EINTR) continue;
            if (got <= 0) return -1;
            if (word == WORD_END) return CAUSE_END;
            sys_kill((int)guest_pid, word); /* it is not reaped yet, so the pid is still the guest's */
        }
    }
}

/* Restrict ourselves to the system calls that are needed from here on. All paths that are opened are constants of this
 * file, and only the report and the workspace are the guest's. */
static const uint32_t calls[] = {
    SYS_ppoll,  SYS_recvfrom, SYS_sendto,    SYS_sendmsg,    SYS_wait4,         SYS_waitid,     SYS_kill,   SYS_openat, SYS_read,
    SYS_close,  SYS_fstat,    SYS_getrusage, SYS_getdents64, SYS_clock_gettime, SYS_exit_group, SYS_statfs, SYS_fchmodat,
    SYS_restart_syscall,
};

#if defined __x86_64__
#define ARCHITECTURE AUDIT_ARCH_X86_64
#else
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

static long allow_only_these_calls(void) {
    enum { COUNT = sizeof calls / sizeof *calls, BEFORE = 4 };
    struct sock_filter filter[BEFORE + COUNT + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    for (unsigned which = 0; which < COUNT; which++) /* jump to the last instruction, which allows */
        filter[BEFORE + which] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[which],
                                                              (unsigned char)(COUNT - which), 0);
    filter[BEFORE + COUNT] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[BEFORE + COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {BEFORE + COUNT + 2, filter};
    return sys_seccomp(SECCOMP_SET_MODE_FILTER, 0, &program);
}

/* Returns the processor time of a process in microseconds; 0 if it has ended. */
static uint64_t used_us(uint32_t pid) {
    char text[128];
    size_t size = read_of_process(pid, "schedstat", text, sizeof text);
    return read_number(text, text + size) / 1000;
}

/* Note what the guest and its helper used while they were armed: that doesn't count. The helper may have ended. If the
 * guest has, too, its run can't be told from what was before. */
static void note_armed_time(void) {
    if (holder_lives) armed_us = used_us(PID_HOLDER);
    if (!guest.ended) armed_us += used_us(guest_seen) + waited_for_us(NULL);
}

/* Find ourselves and the guest, our only child, in the /proc at VIEW. */
static int find_in_view(void) {
    char own[16];
    long size = sys_readlinkat(VIEW, "self", own, sizeof own);
    if (size <= 0) return -1;
    proc_view = VIEW;
    self_seen = (uint32_t)read_number(own, own + size);
    grow_tree();
    if (tree.count != 1) return -1; /* this kernel doesn't list the children of a process */
    guest_seen = tree.pids[0];
    if (lean) guest_pid = guest_seen;
    holder_lives = 0; /* there is none: we could not recognise it */
    return 0;
}

/* End. With a pid namespace, the kernel then kills everything else; without one, we do. */
static int leave(int deaths) {
    if (lean) end_all(deaths);
    return 0;
}

/* An exec by a process whose effective user is not its real one makes the kernel forget, before Linux 6.16, whose end
 * it wanted to be told of. So ask again. Returns non-zero if the zygote has ended before. */
static int be_told_of_the_zygotes_end(uint64_t zygote) {
    return sys_prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || (uint64_t)sys_getppid() != zygote;
}

/* Letters in `with`: `f` and `m` leave a step out, for tests; `v`: read the /proc at VIEW; `l`: there is no pid
 * namespace. The zygote's pid follows, if there is no pid namespace. */
int run_program(const char *with) {
    uint64_t signals = UINT64_C(1) << (SIGCHLD - 1) | UINT64_C(1) << (SIGTERM - 1);
    int filtered = 1, hidden = 1, looks_through = 0;
    uint64_t zygote = 0;
    for (; *with; with++) {
        if (*with >= '0' && *with <= '9') zygote = zygote * 10 + (uint64_t)(*with - '0');
        if (*with == 'f') filtered = 0;
        if (*with == 'm') hidden = 0;
        if (*with == 'v') looks_through = 1;
        if (*with == 'l') lean = 1;
    }
    /* Not dumpable: otherwise the guest, which has the same user, could trace us or take our descriptors. */
    if (hidden && sys_prctl(PR_SET_DUMPABLE, 0) < 0) return 1;
    /* If a lean cell has its own user, our effective id is that one, our real id another. The exec made it our saved
     * id, too, which would let the guest signal us. */
    if (lean && (sys_setresuid(-1, -1, sys_getuid()) < 0 || sys_prctl(PR_SET_NO_NEW_PRIVS, 1) < 0)) return 1;
    if (lean && be_told_of_the_zygotes_end(zygote)) return 1; /* the guest ends with us */
    long deaths = sys_signalfd(&signals); /* the maker has blocked them */
    if (deaths < 0 || (looks_through && find_in_view() < 0)) return 1;
    if (filtered && allow_only_these_calls() < 0) return 1;
    sys_close(HIDDEN); /* the guest waits for this before it probes */
    struct run_order order;
    if (!await_order((int)deaths, &order)) return leave((int)deaths);
    if (lean && !guest.ended && sys_kill((int)guest_pid, 0) < 0) return 1; /* we could not end it: it ends with us */
    note_armed_time();
    int cause = watch((int)deaths, &order);
    if (cause < 0) return leave((int)deaths);
    if (lean || order.wait || order.files || cause != CAUSE_NONE || !all_is_quiet((int)order.helper)) end_all((int)deaths);
    if (order.files) send_workspace();
    send_report(order.max_report);
    send_verdict((enum cause)cause);
    give_way();
    return 0;
}
