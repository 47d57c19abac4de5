/* Probes: the guest finds out, with its own rights, which layers of its cell are in force. Each is tested by its effect,
 * or by what the kernel reports; never by what the steps of cell.c intended.
 *
 * A probe returns NULL if its layer is in force, else why not. found.py reads the report.
 */

#define OVERLAYFS_MAGIC 0x794c7630

struct probe {
    struct cell *cell;
    char *place, *end; /* where the next line goes */
    char status[4096]; /* /proc/self/status */
};

static void write_line(struct probe *probe, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void write_line(struct probe *probe, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int length = vsnprintf(probe->place, (size_t)(probe->end - probe->place), format, values);
    va_end(values);
    if (length > 0 && length < probe->end - probe->place) probe->place += length;
}

static void begin(struct probe *probe, struct cell *cell, char *found, size_t size) {
    probe->cell = cell;
    probe->place = found;
    probe->end = found + size;
    int status = open_proc(cell, "self/status", O_RDONLY);
    if (read_text(status, probe->status, sizeof probe->status) < 0) probe->status[0] = 0;
}

/* The report has a line for each layer: its name if it is in force; its name, a space and the reason if not. */
static void tell_of(struct probe *probe, const char *layer, const char *objection) {
    write_line(probe, "%s%s%s\n", layer, objection ? " " : "", objection ? objection : "");
}

/* --- what the zygote remembers, to compare --- */

static char outside[8][64]; /* the zygote's own namespaces */

static ssize_t read_space(int proc, const char *kind, char *target, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "%sself/ns/%s", proc < 0 ? "/proc/" : "", kind);
    ssize_t length = readlinkat(proc, path, target, size - 1);
    target[length < 0 ? 0 : length] = 0;
    return length;
}

static void remember_namespaces(const struct zygote *zygote) {
    for (int which = 0; zygote->spaces[2 * which]; which++)
        read_space(AT_FDCWD, zygote->spaces[2 * which + 1], outside[which], sizeof outside[which]);
}

static struct {
    dev_t root, parts[64];
} outside_files; /* the zygote's own */

static dev_t device_of(const char *path) {
    struct stat about;
    return stat(path, &about) < 0 ? 0 : about.st_dev;
}

static void remember_files(const struct part *parts) {
    outside_files.root = device_of("/");
    for (size_t which = 0; parts[which].source && which < sizeof outside_files.parts / sizeof(dev_t); which++)
        outside_files.parts[which] = device_of(parts[which].target);
}

/* --- of every cell --- */

static int nothing(void *with) {
    (void)with;
    return 0;
}

/* Returns whether the filter refuses every way to make a user namespace. (One that is made here ends with the cell.) */
static int filter_refuses_namespaces(void) {
    static char stack[4096] __attribute__((aligned(16)));
    if (unshare(CLONE_NEWUSER) == 0 || errno != EPERM) return 0;
    if (clone(nothing, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_NEWUSER | SIGCHLD, NULL) >= 0 || errno != EPERM)
        return 0;
    if (syscall(NR_CLONE3, NULL, 0) >= 0 || errno != ENOSYS) return 0; /* without the filter, EINVAL */
    return setns(ORDER, CLONE_NEWUSER) < 0 && errno == EPERM;         /* without the filter, EINVAL: it is a socket */
}

/* Returns whether a line of /proc/self/status has this value. */
static int status_is(const struct probe *probe, const char *name, const char *value) {
    const char *line = strstr(probe->status, name);
    size_t size = strlen(name), wanted = strlen(value);
    return line && line > probe->status && line[-1] == '\n' && strncmp(line + size, value, wanted) == 0 &&
           line[size + wanted] == '\n';
}

/* Returns whether these sets of capabilities are empty. */
static int are_empty(const struct probe *probe, const char *const *sets) {
    for (; *sets; sets++)
        if (!status_is(probe, *sets, "0000000000000000")) return 0;
    return 1;
}

static const char *probe_signals(struct probe *probe) {
    (void)probe;
    return kill(getppid(), 0) < 0 && errno == EPERM ? NULL : "signals reach processes outside";
}

/* Tests Landlock by its effect. Only Landlock prevents opening /dev/zero for writing: mounts and mode allow it. Only
 * Landlock prevents signals to init, which has the guest's user id. */
static const char *probe_landlock(struct probe *probe) {
    int version = probe->cell->zygote->landlock;
    if (!version) return "this kernel has no Landlock, or it is switched off";
    int file = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    if (file < 0) return "/dev/zero can't be read";
    close(file);
    file = open("/dev/zero", O_WRONLY | O_CLOEXEC);
    if (file >= 0) close(file);
    if (file >= 0 || errno != EACCES) return "files can be written to that should not be";
    return version >= LANDLOCK_SCOPES ? probe_signals(probe) : NULL;
}

static const char *probe_descriptors(struct probe *probe) {
    int extra = 0, looking = probe->cell->empty_proc ? probe->cell->proc : ORDER;
    int listed = open_proc(probe->cell, "self/fd", O_RDONLY | O_DIRECTORY);
    DIR *directory = listed < 0 ? NULL : fdopendir(listed);
    if (!directory) return "the open ones can't be listed";
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (entry->d_name[0] == '.') continue;
        int number = atoi(entry->d_name);
        if (number > ORDER && number != looking && number != dirfd(directory)) extra = 1;
    }
    closedir(directory);
    return extra ? "some are open beside its streams" : NULL;
}

/* Checks the environment with which the zygote was executed: it stays readable, whatever is done to os.environ. */
static const char *probe_environment(struct probe *probe) {
    char text[4096];
    ssize_t size = read_text(open_proc(probe->cell, "self/environ", O_RDONLY), text, sizeof text);
    if (size < 0) return "it can't be read";
    for (const char *entry = text; entry < text + size; entry += strlen(entry) + 1) {
        size_t length = strcspn(entry, "=");
        int known = 0;
        for (const char *const *name = probe->cell->zygote->variables; *name; name++)
            if (strlen(*name) == length && memcmp(*name, entry, length) == 0) known = 1;
        if (!known) return "variables of the host are there";
    }
    return NULL;
}

/* --- of a cell with namespaces --- */

static void probe_namespaces(struct probe *probe) {
    const char *const *spaces = probe->cell->zygote->spaces;
    for (int which = 0; spaces[2 * which]; which++) {
        char own[64], why[96];
        const char *objection = NULL;
        int proc = probe->cell->empty_proc ? probe->cell->proc : AT_FDCWD;
        if (read_space(proc, spaces[2 * which + 1], own, sizeof own) < 0 || strcmp(own, outside[which]) == 0) {
            snprintf(why, sizeof why, "the %s namespace is the host's", spaces[2 * which]);
            objection = why;
        } else if (strcmp(spaces[2 * which], "net") == 0 && !probe->cell->only_loopback) {
            objection = "there are network interfaces beside the cell's own loopback";
        }
        tell_of(probe, spaces[2 * which], objection);
    }
}

static const char ONLY_THE_FILTER[] = "the filter of system calls alone keeps it from making any: /proc/sys is read-only here";

/* Reads the limit in the zygote's /proc: the guest's own doesn't show it. */
static const char *probe_user_namespaces(struct probe *probe) {
    char text[32] = "";
    int writable = faccessat(probe->cell->proc, USER_NAMESPACES, W_OK, AT_EACCESS) == 0 || errno != EROFS;
    if (!writable) return ONLY_THE_FILTER;
    int file = openat(probe->cell->proc, USER_NAMESPACES, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    if (size <= 0) return "it is not known how many more can be made";
    return strcmp(text, "0\n") == 0 ? NULL : "more user namespaces can be made";
}

static const char *probe_capabilities(struct probe *probe) {
    static const char *const sets[] = {"CapInh:\t", "CapPrm:\t", "CapEff:\t", "CapBnd:\t", "CapAmb:\t", NULL};
    return are_empty(probe, sets) ? NULL : "a set of capabilities is not empty";
}

static int is_read_only(const char *path) {
    struct statfs about;
    return statfs(path, &about) == 0 && (about.f_flags & ST_RDONLY);
}

static int is_overlay(const char *path) {
    struct statfs about;
    return statfs(path, &about) == 0 && (unsigned long)about.f_type == OVERLAYFS_MAGIC;
}

/* Returns whether a directory has an entry other than `known`, a name of `size` bytes: directories above the project
 * must contain nothing else. */
static int has_others(const char *path, const char *known, size_t size) {
    DIR *directory = opendir(path);
    int others = !directory;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        /* Our own link, configuration.HOME, to the cell's workspace. */
        char target[32];
        ssize_t length = readlinkat(dirfd(directory), name, target, sizeof target);
        if (strcmp(name, "user") == 0 && length == 10 && memcmp(target, "/workspace", 10) == 0) continue;
        if (strlen(name) != size || memcmp(name, known, size) != 0) others = 1;
    }
    if (directory) closedir(directory);
    return others;
}

static const char *probe_root(struct probe *probe) {
    static const char *const places[] = {"/home", "/mnt"};
    static char why[64];
    char here[64];
    const char *project = probe->cell->order->project;
    for (const char *const *place = probe->cell->zygote->read_only; *place; place++) {
        if (is_read_only(*place)) continue;
        snprintf(why, sizeof why, "%s is writable", *place);
        return why;
    }
    if (access("/sys", F_OK) == 0) return "the host's directories are there";
    for (size_t which = 0; which < sizeof places / sizeof *places; which++) {
        size_t size = strlen(places[which]);
        const char *known = strncmp(project, places[which], size) == 0 && project[size] == '/' ? project + size + 1 : "";
        if (has_others(places[which], known, strcspn(known, "/"))) return "the host's directories are there";
    }
    if (!getcwd(here, sizeof here) || strcmp(here, "/workspace") != 0) return "the working directory is another";
    return NULL;
}

static const char *probe_project(struct probe *probe) {
    const struct cell_order *order = probe->cell->order;
    if (!is_overlay(order->project)) return "it is not an overlay: its sockets, pipes and locks are the host's";
    if (order->workspace == READ_ONLY && !is_read_only(order->project)) return "it is writable";
    return NULL;
}

static const char *probe_private(struct probe *probe) {
    uint64_t most = probe->cell->order->disk > 16 << 20 ? probe->cell->order->disk : 16 << 20;
    for (const char *const *place = probe->cell->zygote->writable; *place; place++) {
        struct statfs about;
        if (statfs(*place, &about) < 0 || !about.f_blocks ||
            (uint64_t)about.f_blocks * (uint64_t)about.f_bsize > most + 4096)
            return "a place to write to has no limit";
        if (!about.f_files || !(about.f_flags & ST_NOSUID))
            return "a place to write to takes any number of files, or setuid programs";
    }
    return NULL;
}

static const char *probe_proc(struct probe *probe) {
    const char *objection = NULL;
    (void)probe;
    DIR *directory = opendir("/proc");
    if (!directory) return "it can't be listed";
    for (struct dirent *entry; (entry = readdir(directory));) {
        const char *name = entry->d_name;
        if (name[0] >= '0' && name[0] <= '9') {
            if (atoi(name) != PID_INIT && atoi(name) != getpid()) objection = "/proc shows other processes";
        } else if (name[0] != '.' && strcmp(name, "self") != 0 && strcmp(name, "thread-self") != 0) {
            objection = "/proc shows more than processes";
        }
    }
    closedir(directory);
    return objection;
}

/* Each overlay has its own device number. A device that the zygote has, too, is shared with other cells. */
static const char *probe_locks(struct probe *probe) {
    static char why[160];
    const struct part *parts = probe->cell->zygote->parts;
    const char *common = is_overlay("/") && device_of("/") != outside_files.root ? NULL : "/";
    for (size_t which = 0; !common && parts[which].source; which++) {
        if (!parts[which].source[0]) continue; /* a device, or covered by a mount of the cell */
        const char *path = parts[which].target;
        if (which >= sizeof outside_files.parts / sizeof(dev_t) || !is_overlay(path) || !device_of(path) ||
            device_of(path) == outside_files.parts[which])
            common = path;
    }
    if (!common) return NULL;
    snprintf(why, sizeof why, "other cells see locks on %.80s, and who opens it", common);
    return why;
}

static const char *probe_init(struct probe *probe) {
    char path[32];
    snprintf(path, sizeof path, "%d/fd", probe->cell->empty_proc ? probe->cell->init_seen : PID_INIT);
    int directory = open_proc(probe->cell, path, O_RDONLY | O_DIRECTORY), number = errno;
    if (directory >= 0) {
        DIR *listed = fdopendir(directory);
        errno = 0;
        int seen = listed && readdir(listed);
        number = errno;
        if (listed) closedir(listed);
        if (seen) return "the guest can look into its init";
    }
    return number == EACCES || number == EPERM ? NULL : "it is not known whether the guest can look into its init";
}

/* Decode a path of mountinfo, in which spaces and the like are a backslash and three octal digits. */
static void unescape(char *text) {
    char *to = text;
    for (; *text; text++, to++) {
        *to = *text;
        if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3' && text[2] >= '0' && text[2] <= '7' && text[3] >= '0' &&
            text[3] <= '7') {
            *to = (char)((text[1] - '0') << 6 | (text[2] - '0') << 3 | (text[3] - '0'));
            text += 3;
        }
    }
    *to = 0;
}

/* Returns the path of a mount below /opt that reveals a path of the host, or NULL: one that is neither an overlay nor a
 * tmpfs. (A project is shown at its own path anyway.) Modifies `mountinfo`. */
const char *cell_place_shown(char *mountinfo, const char *project) {
    size_t own = strlen(project);
    for (char *rest = NULL, *line = strtok_r(mountinfo, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *kind = strstr(line, " - "), *fields = NULL, *path = strtok_r(line, " ", &fields);
        for (int field = 1; path && field < 5; field++) path = strtok_r(NULL, " ", &fields);
        if (!path || !kind || path > kind) continue;
        kind[3 + strcspn(kind + 3, " ")] = 0;
        unescape(path);
        if (strncmp(path, "/opt/", 5) != 0 || strcmp(kind + 3, "overlay") == 0 || strcmp(kind + 3, "tmpfs") == 0) continue;
        if (own && strncmp(path, project, own) == 0 && (path[own] == 0 || path[own] == '/')) continue;
        return path;
    }
    return NULL;
}

static const char *probe_names(struct probe *probe) {
    static char text[1 << 17], why[160];
    struct utsname about;
    if (read_text(open_proc(probe->cell, "self/mountinfo", O_RDONLY), text, sizeof text) < 0) return "the mounts can't be read";
    const char *shown = cell_place_shown(text, probe->cell->order->project);
    if (shown) {
        snprintf(why, sizeof why, "where %.80s lies on the host shows in /proc/self/mountinfo", shown);
        return why;
    }
    uname(&about);
    unsigned guest = (unsigned)strtoul(probe->cell->zygote->map, NULL, 10);
    if (strcmp(about.nodename, probe->cell->zygote->host_name) != 0 || getuid() != guest || getgid() != guest)
        return "the name of the host or of its user shows";
    return NULL;
}

/* `user_namespaces` is what `probe_user_namespaces` returned. */
static void probe_all(struct cell *cell, char *found, size_t size, const char *user_namespaces) {
    static struct probe probe;
    begin(&probe, cell, found, size);
    probe_namespaces(&probe);
    tell_of(&probe, "user-namespaces", user_namespaces);
    tell_of(&probe, "capabilities", probe_capabilities(&probe));
    tell_of(&probe, "no_new_privs", status_is(&probe, "NoNewPrivs:\t", "1") ? NULL : "NoNewPrivs is not 1");
    tell_of(&probe, "seccomp", status_is(&probe, "Seccomp:\t", "2") ? NULL : "Seccomp is not 2");
    tell_of(&probe, "landlock", probe_landlock(&probe));
    tell_of(&probe, "filesystem", probe_root(&probe));
    tell_of(&probe, "private", probe_private(&probe));
    tell_of(&probe, "descriptors", probe_descriptors(&probe));
    tell_of(&probe, "environment", probe_environment(&probe));
    tell_of(&probe, "proc", probe_proc(&probe));
    tell_of(&probe, "init", probe_init(&probe));
    tell_of(&probe, "names", probe_names(&probe));
    tell_of(&probe, "locks", probe_locks(&probe));
    if (cell->order->project[0]) tell_of(&probe, "workspace", probe_project(&probe));
    write_line(&probe, "=landlock %d\n=overlay %d\n=proc %d\n", cell->zygote->landlock, cell->zygote->shared < 2,
               !cell->empty_proc);
    if (probe.end - probe.place < 128) _exit(1); /* the report may be cut off: then there is none */
    if (user_namespaces == ONLY_THE_FILTER && !filter_refuses_namespaces()) {
        say_broken(ORDER, "user-namespaces", EROFS);
        _exit(1);
    }
    if (cell->empty_proc && close(cell->proc) < 0) _exit(1);
}

/* --- of a lean cell --- */

static const char *probe_user(struct probe *probe) {
    unsigned real, effective, saved, user = probe->cell->order->user;
    if (!user) return "its user is Redoma's own: there was no right to change it";
    if (getresuid(&real, &effective, &saved) < 0 || real != user || effective != user || saved != user || getgid() != user)
        return "it is not the user that it was to be";
    return NULL;
}

static const char *probe_capabilities_left(struct probe *probe) {
    static const char *const sets[] = {"CapInh:\t", "CapPrm:\t", "CapEff:\t", "CapAmb:\t", NULL};
    if (!are_empty(probe, sets)) return "a set of capabilities is not empty";
    return status_is(probe, "NoNewPrivs:\t", "1") ? NULL : "a program could gain some";
}

/* Returns whether Landlock refuses to open this. */
static int is_closed(const char *path, int flags) {
    int file = open(path, flags | O_CLOEXEC, 0600);
    if (file >= 0) close(file);
    return file < 0 && (errno == EACCES || errno == ENOENT);
}

static const char *probe_files(struct probe *probe) {
    static const char *const listed[] = {"/", "/proc", "/proc/1", "/sys", "/root", "/home", "/var", "/run", "/tmp", "/dev/shm"};
    static const char *const written[] = {"/", "/tmp", "/var/tmp", "/dev/shm", "/usr"};
    for (size_t which = 0; which < sizeof listed / sizeof *listed; which++)
        if (!is_closed(listed[which], O_RDONLY | O_DIRECTORY)) return "directories of the host can be listed";
    if (!is_closed(probe->cell->order->place, O_RDONLY | O_DIRECTORY)) return "the directory of the cell can be listed";
    for (size_t which = 0; which < sizeof written / sizeof *written; which++)
        if (!is_closed(written[which], O_TMPFILE | O_WRONLY) && errno != EROFS && errno != EOPNOTSUPP)
            return "files can be made elsewhere than in its own directories";
    return access("/usr/bin", R_OK | X_OK) == 0 ? NULL : "the system's programs can't be read";
}

static const char *probe_network(struct probe *probe) {
    static const int families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_VSOCK};
    (void)probe;
    for (size_t which = 0; which < sizeof families / sizeof *families; which++) {
        int made = socket(families[which], SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (made >= 0) close(made);
        if (made >= 0 || errno != EPERM) return "sockets can be made";
    }
    return NULL;
}

static const char *probe_ipc(struct probe *probe) {
    (void)probe;
    int made = (int)syscall(SYS_shmget, 0, 4096, 0600);
    if (made >= 0) syscall(SYS_shmctl, made, 0, NULL); /* remove it, or it would stay on the host */
    return made < 0 && errno == ENOSYS ? NULL : "shared memory of the host's can be had";
}

static const char *probe_own_init(struct probe *probe) {
    char path[32];
    (void)probe;
    snprintf(path, sizeof path, "/proc/%d/fd", getppid());
    return is_closed(path, O_RDONLY | O_DIRECTORY) ? NULL : "the guest can look into its init";
}

static const char *probe_places(struct probe *probe) {
    char path[sizeof probe->cell->order->place + 16];
    for (const char *const *name = probe->cell->zygote->writable; *name; name++) {
        struct stat about;
        snprintf(path, sizeof path, "%s%s", probe->cell->order->place, *name);
        if (stat(path, &about) < 0 || !S_ISDIR(about.st_mode) || about.st_uid != getuid() || (about.st_mode & 077))
            return "a place to write to is not the cell's alone";
    }
    return NULL;
}

static void probe_all_lean(struct cell *cell, char *found, size_t size) {
    static struct probe probe;
    begin(&probe, cell, found, size);
    tell_of(&probe, "user", probe_user(&probe));
    tell_of(&probe, "user-namespaces", filter_refuses_namespaces() ? NULL : "the filter doesn't refuse to make them");
    tell_of(&probe, "capabilities", probe_capabilities_left(&probe));
    tell_of(&probe, "no_new_privs", status_is(&probe, "NoNewPrivs:\t", "1") ? NULL : "NoNewPrivs is not 1");
    tell_of(&probe, "seccomp", status_is(&probe, "Seccomp:\t", "2") ? NULL : "Seccomp is not 2");
    tell_of(&probe, "landlock", probe_landlock(&probe));
    tell_of(&probe, "files", probe_files(&probe));
    tell_of(&probe, "network", probe_network(&probe));
    tell_of(&probe, "ipc", probe_ipc(&probe));
    tell_of(&probe, "signals", probe_signals(&probe));
    tell_of(&probe, "private", probe_places(&probe));
    tell_of(&probe, "descriptors", probe_descriptors(&probe));
    tell_of(&probe, "environment", probe_environment(&probe));
    tell_of(&probe, "init", probe_own_init(&probe));
    write_line(&probe, "=landlock %d\n", cell->zygote->landlock);
    if (probe.end - probe.place < 128) _exit(1); /* the report may be cut off: then there is none */
}

