/* Reads /proc without a C library, for programs that watch other processes. */

#define EINTR 4
#define TICKS_PER_SECOND 100 /* of the times in /proc: the same on every architecture */
#define STATUS_BYTES 4096

/* --- text and numbers --- */

static size_t length_of(const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    return length;
}

/* Write a text at `place`, with its final 0; returns the place of that. */
static char *write_text(char *place, const char *text) {
    while ((*place = *text++)) place++;
    return place;
}

/* Write a number at `place`; returns the end. */
static char *write_number(char *place, uint64_t number) {
    char digits[24];
    int count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    while (count) *place++ = digits[--count];
    return place;
}

/* Returns the number at the beginning of a text; 0 if there is none. Saturates. */
static uint64_t read_number(const char *text, const char *end) {
    uint64_t number = 0;
    while (text < end && *text == ' ') text++;
    for (; text < end && *text >= '0' && *text <= '9'; text++) {
        if (number > (UINT64_MAX - 9) / 10) return UINT64_MAX;
        number = number * 10 + (uint64_t)(*text - '0');
    }
    return number;
}

/* --- files of /proc --- */

static int proc_view = -1; /* a descriptor of the /proc to read; -1: our own */

/* Read a file of /proc. Returns the number of bytes; 0 if it no longer exists. */
static size_t read_file(const char *path, char *buffer, size_t size) {
    long file = proc_view < 0 ? sys_openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC)
                              : sys_openat(proc_view, path + sizeof "/proc", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    size_t length = 0;
    while (length < size) {
        long got = sys_read((int)file, buffer + length, size - length);
        if (got <= 0) break;
        length += (size_t)got;
    }
    sys_close((int)file);
    return length;
}

static size_t read_of_process(uint32_t pid, const char *name, char *buffer, size_t size) {
    char path[64];
    write_text(write_text(write_number(write_text(path, "/proc/"), pid), "/"), name);
    return read_file(path, buffer, size);
}

/* Fields of /proc/PID/stat, counted from the state (0). The name before it may contain anything. */
struct stat_fields {
    uint64_t utime, stime, cutime, cstime, threads, started, stack;
};

static int parse_stat(const char *text, size_t size, struct stat_fields *fields) {
    const char *end = text + size, *place = end;
    while (place > text && place[-1] != ')') place--;
    if (place == text) return -1;
    enum { FIELDS = 26 };
    uint64_t numbers[FIELDS] = {0};
    int number = -1; /* the space after the bracket begins field 0 */
    for (; place < end && number < FIELDS; place++) {
        if (*place != ' ') continue;
        if (++number < FIELDS) numbers[number] = read_number(place + 1, end);
    }
    if (number < FIELDS - 1) return -1;
    fields->utime = numbers[11];
    fields->stime = numbers[12];
    fields->cutime = numbers[13];
    fields->cstime = numbers[14];
    fields->threads = numbers[17];
    fields->started = numbers[19];
    fields->stack = numbers[25]; /* its start address; 0 if we may not read it */
    return 0;
}

static int begins_with(const char *line, const char *end, const char *word) {
    while (*word) {
        if (line == end || *line++ != *word++) return 0;
    }
    return 1;
}

/* Returns the sum, in bytes, of the lines of /proc/PID/status or smaps_rollup that begin with one of these words. */
static uint64_t sum_lines(const char *text, size_t size, const char *const *words) {
    uint64_t total = 0;
    const char *end = text + size;
    for (const char *line = text; line < end;) {
        for (const char *const *word = words; *word; word++) {
            if (begins_with(line, end, *word)) {
                const char *number = line + length_of(*word);
                while (number < end && (*number == ' ' || *number == '\t')) number++;
                total += read_number(number, end) * 1024;
            }
        }
        while (line < end && *line != '\n') line++;
        line++;
    }
    return total;
}

/* Memory of a process, including page tables: those of a large mapping can be larger than its pages. */
static uint64_t resident(uint32_t pid) {
    static const char *const words[] = {"VmRSS:", "VmPTE:", "VmSwap:", NULL};
    static char text[STATUS_BYTES];
    return sum_lines(text, read_of_process(pid, "status", text, sizeof text), words);
}

/* Memory of a process, where a page shared by n processes counts 1/n. Counts in full if we may not read smaps_rollup. */
static uint64_t proportional(uint32_t pid) {
    static const char *const all[] = {"Rss:", NULL}, *const share[] = {"Pss:", NULL};
    static char text[STATUS_BYTES];
    uint64_t whole = resident(pid);
    size_t size = read_of_process(pid, "smaps_rollup", text, sizeof text);
    if (!size) return whole;
    uint64_t mapped = sum_lines(text, size, all), ours = sum_lines(text, size, share);
    return whole - (mapped < whole ? mapped : whole) + ours;
}
