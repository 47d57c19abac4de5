/* Copies a session into another cell: saves the memory of a Python process to a file, and loads it in another process.
 *
 *   the parent's cell                                  a new cell, forked from the same zygote
 *     worker ─ fork ─ image_save: writes its memory      driver ─ fork ─ image_load: gets that memory,
 *                     to a file, which is then sealed                    and returns from image_save
 *
 * All processes forked from one zygote have the C library, the stack and the interpreter at the same addresses. So a
 * process that maps the parts of the file at their old addresses, and the other files that were mapped, is that Python.
 * The mappings are private: any number of copies share the pages that none of them writes to.
 *
 * Both ends run with the rights of the code in their cells, when all layers are in force. A forged file can't make a
 * copy do anything that its code could not do by itself. So nothing in the file is trusted, and little is checked.
 *
 * It uses no C library and no memory but `state`: while `become` runs, on its own stack, everything else is replaced.
 */

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#define WITHOUT_START
#include "../../c/raw.h"

#define PAGE 4096ul
#define MAGIC 0x31656c6c65636d69ul
#define MAX_AREAS 8192
#define MAX_RUNS 24576
#define MAX_NAMES (1 << 19)
#define MAX_GAP 8 /* empty pages between others that are written anyway, for fewer mappings */
#define SIGNALS 64
#define TIDS 8

/* Why there can be no image, besides errno. compiled.py has the same numbers. */
enum { NOT_PRIVATE = 1001, DELETED = 1002, TOO_MANY = 1003, ANOTHER_ZYGOTE = 1004, NO_THREAD_ID = 1005, OTHER_PAGES = 1006, TOO_LARGE = 1007 };

enum kind { KIND_SKIP, KIND_ANONYMOUS, KIND_FILE, KIND_HEAP, KIND_STACK };

/* A part of the address space: a line of /proc/self/maps. */
struct area {
    uint64_t start, end, offset;
    uint32_t name; /* offset of its name */
    uint16_t protection;
    uint8_t kind, shared;
    uint8_t whole; /* it comes from an earlier image: all its pages have content */
};

/* Pages with content, which are in the file at `offset`. */
struct run {
    uint64_t start, size, offset;
    uint32_t area, reserved;
};

struct handler {
    uint64_t parts[4];
};

struct image {
    uint64_t magic, cookie[2];
    uint32_t areas, runs, names, reserved;
    uint64_t brk, size;
    uint64_t registers[24];
    stack_t other_stack;
    struct handler handlers[SIGNALS];
    struct area area[MAX_AREAS];
    struct run run[MAX_RUNS];
    char name[MAX_NAMES];
};

/* All our memory. It is not part of an image, and stays when a process becomes one. */
static struct {
    uint64_t cookie[2];
    int thread_ids, thread_id[TIDS]; /* where the C library keeps the id of this thread, relative to the thread pointer */
    struct image image;
    struct area own[MAX_AREAS];
    uint32_t own_count, own_names;
    char own_name[MAX_NAMES];
    char text[1 << 20];
    uint64_t pages[4096];
    char stack[1 << 16];
    uint64_t problem; /* the address of what can't be copied */
} state __attribute__((aligned(4096)));

static uint64_t state_start(void) { return (uint64_t)&state; }
static uint64_t state_end(void) { return ((uint64_t)&state + sizeof state + PAGE - 1) & ~(PAGE - 1); }

/* --- tools --- */

static long sys_mmap(uint64_t start, uint64_t size, int protection, int flags, int file, uint64_t offset) {
    return call6(SYS_mmap, (long)start, (long)size, protection, flags, file, (long)offset);
}
static long sys_pread(int file, uint64_t to, uint64_t size, uint64_t offset) {
    return call(SYS_pread64, file, (long)to, (long)size, (long)offset, 0);
}

static void copy(char *to, const char *from, uint64_t size) {
#if defined __x86_64__
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size)::"memory");
#else
    for (; size >= 8; size -= 8, to += 8, from += 8)
        *(volatile uint64_t *)(void *)to = *(const uint64_t *)(const void *)from;
    while (size--) *(volatile char *)to++ = *from++;
#endif
}

static int same(const char *one, const char *other) {
    while (*one && *one == *other) one++, other++;
    return *one == *other;
}

static int begins(const char *text, const char *with) {
    while (*with && *text == *with) text++, with++;
    return !*with;
}

static int ends(const char *text, const char *with) {
    const char *end = text, *tail = with;
    while (*end) end++;
    while (*tail) tail++;
    while (tail > with && end > text)
        if (*--tail != *--end) return 0;
    return tail == with;
}

static char *thread_pointer(void) {
#if defined __x86_64__
    char *pointer;
    __asm__("mov %%fs:0x10, %0" : "=r"(pointer));
    return pointer;
#else
    return __builtin_thread_pointer();
#endif
}

/* Save the registers that a function must preserve, and the return address, like setjmp. Returns 0 now, and 1 each time
 * that `go_back` is called. (Not every compiler has `__builtin_setjmp` for every machine.) */
int remember(uint64_t *registers) __attribute__((returns_twice, visibility("hidden")));
void go_back(const uint64_t *registers) __attribute__((noreturn, visibility("hidden")));

#if defined __x86_64__
__asm__(".text\n.hidden remember\n.globl remember\n.type remember, @function\nremember:\n"
        " mov %rbx, 0(%rdi)\n mov %rbp, 8(%rdi)\n mov %r12, 16(%rdi)\n mov %r13, 24(%rdi)\n mov %r14, 32(%rdi)\n"
        " mov %r15, 40(%rdi)\n lea 8(%rsp), %rdx\n mov %rdx, 48(%rdi)\n mov (%rsp), %rdx\n mov %rdx, 56(%rdi)\n"
        " xor %eax, %eax\n ret\n"
        ".hidden go_back\n.globl go_back\n.type go_back, @function\ngo_back:\n"
        " mov 0(%rdi), %rbx\n mov 8(%rdi), %rbp\n mov 16(%rdi), %r12\n mov 24(%rdi), %r13\n mov 32(%rdi), %r14\n"
        " mov 40(%rdi), %r15\n mov 48(%rdi), %rsp\n mov $1, %eax\n jmp *56(%rdi)\n");
#else
__asm__(".text\n.hidden remember\n.globl remember\n.type remember, %function\nremember:\n"
        " stp x19, x20, [x0, #0]\n stp x21, x22, [x0, #16]\n stp x23, x24, [x0, #32]\n stp x25, x26, [x0, #48]\n"
        " stp x27, x28, [x0, #64]\n stp x29, x30, [x0, #80]\n mov x1, sp\n str x1, [x0, #96]\n"
        " stp d8, d9, [x0, #104]\n stp d10, d11, [x0, #120]\n stp d12, d13, [x0, #136]\n stp d14, d15, [x0, #152]\n"
        " mov x0, #0\n ret\n"
        ".hidden go_back\n.globl go_back\n.type go_back, %function\ngo_back:\n"
        " ldp x19, x20, [x0, #0]\n ldp x21, x22, [x0, #16]\n ldp x23, x24, [x0, #32]\n ldp x25, x26, [x0, #48]\n"
        " ldp x27, x28, [x0, #64]\n ldp x29, x30, [x0, #80]\n ldr x1, [x0, #96]\n mov sp, x1\n"
        " ldp d8, d9, [x0, #104]\n ldp d10, d11, [x0, #120]\n ldp d12, d13, [x0, #136]\n ldp d14, d15, [x0, #152]\n"
        " mov x0, #1\n ret\n");
#endif

/* --- the address space --- */

static uint64_t hexadecimal(const char **text) {
    uint64_t number = 0;
    for (;; (*text)++) {
        char digit = **text;
        if (digit >= '0' && digit <= '9') {
            number = number * 16 + (uint64_t)(digit - '0');
        } else if (digit >= 'a' && digit <= 'f') {
            number = number * 16 + (uint64_t)(digit - 'a' + 10);
        } else {
            return number;
        }
    }
}

static enum kind kind_of(const char *name) {
    if (*name == 0 || begins(name, "[anon")) return KIND_ANONYMOUS;
    if (same(name, "[heap]")) return KIND_HEAP;
    if (same(name, "[stack]")) return KIND_STACK;
    return *name == '/' ? KIND_FILE : KIND_SKIP; /* pages of the kernel */
}

struct list {
    struct area *areas;
    uint32_t *count;
    char *names;
    uint32_t *used;
};

static int add_area(const struct list *to, struct area area, uint64_t start, uint64_t end) {
    if (start >= end) return 0;
    if (*to->count == MAX_AREAS) return -TOO_MANY;
    if (area.kind == KIND_FILE) area.offset += start - area.start;
    area.start = start;
    area.end = end;
    to->areas[(*to->count)++] = area;
    return 0;
}

/* Read one line of /proc/self/maps: "start-end rwxp offset device inode   name". */
static int add_line(const struct list *to, const char *line) {
    struct area area = {0};
    area.start = hexadecimal(&line);
    line++;
    area.end = hexadecimal(&line);
    line++;
    area.protection = (uint16_t)((line[0] == 'r' ? PROT_READ : 0) | (line[1] == 'w' ? PROT_WRITE : 0) |
                                 (line[2] == 'x' ? PROT_EXEC : 0));
    area.shared = line[3] == 's';
    line += 5;
    area.offset = hexadecimal(&line);
    for (int field = 0; field < 2; field++) {
        while (*line == ' ') line++;
        while (*line && *line != ' ') line++;
    }
    while (*line == ' ') line++;
    area.kind = kind_of(line);
    area.name = *to->used;
    do {
        if (*to->used == MAX_NAMES) return -TOO_MANY;
        to->names[(*to->used)++] = *line;
    } while (*line++);
    uint64_t before = area.end < state_start() ? area.end : state_start();
    uint64_t behind = area.start > state_end() ? area.start : state_end();
    int problem = add_area(to, area, area.start, before);
    return problem ? problem : add_area(to, area, behind, area.end);
}

/* Read /proc/self/maps, except for `state`. */
static int read_areas(const struct list *to) {
    int file = (int)sys_openat(AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
    long got = file, length = 0;
    *to->count = *to->used = 0;
    if (file < 0) return file;
    while ((got = sys_read(file, state.text + length, sizeof state.text - 1 - (size_t)length)) > 0) length += got;
    sys_close(file);
    if (got < 0) return (int)got;
    if (length == sizeof state.text - 1) return -TOO_MANY;
    for (char *line = state.text, *end = state.text + length; line < end;) {
        char *next = line;
        while (next < end && *next != '\n') next++;
        *next = 0;
        int problem = add_line(to, line);
        if (problem) return problem;
        line = next + 1;
    }
    return 0;
}

/* --- saving --- */

#define PRESENT (UINT64_C(3) << 62) /* or swapped out */
#define OF_A_FILE (UINT64_C(1) << 61)

/* Determine whether an area can be copied, and as which kind. */
static int check(struct area *area, const char *name) {
    if (area->kind == KIND_SKIP) return 0;
    state.problem = area->start;
    if (area->shared && (area->protection & PROT_WRITE || area->kind != KIND_FILE)) return -NOT_PRIVATE;
    if (area->kind == KIND_FILE && !area->shared && begins(name, "/memfd:redoma-session")) {
        area->kind = KIND_ANONYMOUS;
        area->whole = 1;
    }
    if (area->kind == KIND_FILE && ends(name, " (deleted)")) return -DELETED;
    return 0;
}

static int add_run(struct image *image, uint32_t area, uint64_t start, uint64_t end) {
    struct run *last = image->runs ? &image->run[image->runs - 1] : NULL;
    if (last && last->area == area && start - (last->start + last->size) <= MAX_GAP * PAGE) {
        last->size = end - last->start;
        return 0;
    }
    if (image->runs == MAX_RUNS) return -TOO_MANY;
    image->run[image->runs++] = (struct run){start, end - start, 0, area, 0};
    return 0;
}

/* Find the pages of an area that differ from a new mapping. */
static int add_runs(struct image *image, int pagemap, uint32_t which, uint64_t stack) {
    const struct area *area = &image->area[which];
    uint64_t start = area->start, most = sizeof state.pages / sizeof *state.pages;
    if (area->kind == KIND_SKIP || area->shared) return 0;
    if (area->whole) return add_run(image, which, area->start, area->end);
    if (area->kind == KIND_STACK) start = stack; /* below it nothing is in use */
    while (start < area->end) {
        uint64_t count = (area->end - start) / PAGE;
        if (count > most) count = most;
        long got = sys_pread(pagemap, (uint64_t)state.pages, count * 8, start / PAGE * 8);
        if (got <= 0) return got < 0 ? (int)got : -OTHER_PAGES;
        count = (uint64_t)got / 8;
        for (uint64_t page = 0; page < count; page++) {
            uint64_t entry = state.pages[page], at = start + page * PAGE;
            if (!(entry & PRESENT) || (area->kind == KIND_FILE && entry & OF_A_FILE)) continue;
            int problem = add_run(image, which, at, at + PAGE);
            if (problem) return problem;
        }
        start += count * PAGE;
    }
    return 0;
}

#define WINDOW (8ul << 20)
#define POPULATE 23 /* MADV_POPULATE_WRITE of Linux 5.14: without it, each page costs a fault */
#define EFBIG_ 27

/* Write through a mapping. Slower, but not subject to RLIMIT_FSIZE, which is meant for files of the code: the size of
 * this file was set from outside. */
static int write_mapped(int file, uint64_t from, uint64_t size, uint64_t offset) {
    while (size) {
        uint64_t before = offset % PAGE, count = WINDOW - before < size ? WINDOW - before : size;
        long window = sys_mmap(0, before + count, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset - before);
        if (window < 0) return (int)window;
        call(SYS_madvise, window, (long)(before + count), POPULATE, 0, 0);
        copy((char *)window + before, (const char *)from, count);
        call(SYS_munmap, window, (long)(before + count), 0, 0, 0);
        from += count;
        offset += count;
        size -= count;
    }
    return 0;
}

static int write_all(int file, uint64_t from, uint64_t size, uint64_t offset) {
    while (size) {
        long put = call(SYS_pwrite64, file, (long)from, (long)size, (long)offset, 0);
        if (put == -EFBIG_) return write_mapped(file, from, size, offset);
        if (put <= 0) return put < 0 ? (int)put : -TOO_LARGE;
        from += (uint64_t)put;
        offset += (uint64_t)put;
        size -= (uint64_t)put;
    }
    return 0;
}

/* Make everything readable: this process exists only to be saved. */
static int write_run(int file, const struct run *run) {
    if (!(state.image.area[run->area].protection & PROT_READ)) {
        long answer = call(SYS_mprotect, (long)run->start, (long)run->size, PROT_READ, 0, 0);
        if (answer < 0) return (int)answer;
    }
    return write_all(file, run->start, run->size, run->offset);
}

static int write_image(int file, uint64_t most) {
    struct image *image = &state.image;
    uint64_t offset = (sizeof *image + PAGE - 1) & ~(PAGE - 1);
    for (uint32_t which = 0; which < image->runs; which++) {
        image->run[which].offset = offset;
        offset += image->run[which].size;
    }
    image->size = offset;
    if (offset > most) return -TOO_LARGE;
    for (uint32_t which = 0; which < image->runs; which++) {
        int problem = write_run(file, &image->run[which]);
        if (problem) return problem;
    }
    uint64_t here = (uint64_t)image, runs = offsetof(struct image, run), names = offsetof(struct image, name);
    int problem = write_all(file, here, offsetof(struct image, area) + image->areas * sizeof *image->area, 0);
    if (!problem) problem = write_all(file, here + runs, image->runs * sizeof *image->run, runs);
    return problem ? problem : write_all(file, here + names, image->names, names);
}

static int save(int file, uint64_t most, uint64_t stack) {
    struct image *image = &state.image;
    struct list all = {image->area, &image->areas, image->name, &image->names};
    if (!state.thread_ids) return -NO_THREAD_ID;
    int problem = read_areas(&all);
    if (problem) return problem;
    image->magic = MAGIC;
    image->cookie[0] = state.cookie[0];
    image->cookie[1] = state.cookie[1];
    image->runs = 0;
    image->brk = (uint64_t)call(SYS_brk, 0, 0, 0, 0, 0);
    for (int number = 1; number <= SIGNALS; number++)
        call(SYS_rt_sigaction, number, 0, (long)&image->handlers[number - 1], 8, 0);
    call(SYS_sigaltstack, 0, (long)&image->other_stack, 0, 0, 0);
    struct handler ignored = {{1, 0, 0, 0}};
    call(SYS_rt_sigaction, SIGXFSZ, (long)&ignored, 0, 8, 0); /* get an error if the file becomes too long */
    int pagemap = (int)sys_openat(AT_FDCWD, "/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap < 0) return pagemap;
    for (uint32_t which = 0; !problem && which < image->areas; which++) {
        problem = check(&image->area[which], image->name + image->area[which].name);
        if (!problem) problem = add_runs(image, pagemap, which, stack);
    }
    sys_close(pagemap);
    return problem ? problem : write_image(file, most);
}

/* Write this process to a file, from its beginning, at most this many bytes. Returns the size, or a negative number
 * that says why it is impossible. Returns 0 in each process that becomes the image. */
__attribute__((visibility("default"), noinline)) long image_save(int file, uint64_t most) {
    uint64_t stack = ((uint64_t)__builtin_frame_address(0) & ~(PAGE - 1)) - PAGE;
    if (remember(state.image.registers)) return 0;
    int problem = save(file, most, stack);
    return problem ? problem : (long)state.image.size;
}

/* Returns the name in /proc/self/maps of what image_save could not copy. */
__attribute__((visibility("default"))) const char *image_problem(void) {
    for (uint32_t which = 0; which < state.image.areas; which++)
        if (state.image.area[which].start == state.problem) return state.image.name + state.image.area[which].name;
    return "";
}

/* --- loading --- */

static const char *own_name(const struct area *area) { return state.own_name + area->name; }
static const char *its_name(const struct area *area) { return state.image.name + area->name; }

/* Returns whether a file is already mapped here as it was there: then it need not be opened. */
static int is_here(const struct area *wanted) {
    for (uint32_t which = 0; which < state.own_count; which++) {
        const struct area *own = &state.own[which];
        if (own->start == wanted->start)
            return own->end == wanted->end && own->offset == wanted->offset && own->kind == wanted->kind &&
                   own->protection == wanted->protection && own->shared == wanted->shared &&
                   same(own_name(own), its_name(wanted));
    }
    return 0;
}

static void __attribute__((noreturn)) fail(int status) {
    for (;;) call(SYS_exit_group, status, 0, 0, 0, 0);
}

/* Unmap what is not in the image. */
static void clear(const struct area *own) {
    uint64_t start = own->start;
    for (uint32_t which = 0; which < state.image.areas && start < own->end; which++) {
        const struct area *area = &state.image.area[which];
        if (area->kind == KIND_SKIP || area->end <= start) continue;
        if (area->start >= own->end) break;
        if (area->start > start) call(SYS_munmap, (long)start, (long)(area->start - start), 0, 0, 0);
        start = area->end;
    }
    if (start < own->end) call(SYS_munmap, (long)start, (long)(own->end - start), 0, 0, 0);
}

/* Map an area anew. In one step, because the kernel may write to our memory at any time (rseq). */
static void map_area(const struct area *area) {
    uint64_t size = area->end - area->start;
    int flags = MAP_FIXED | (area->shared ? MAP_SHARED : MAP_PRIVATE), protection = area->protection;
    if (area->kind == KIND_FILE && is_here(area)) {
        if (!area->shared && call(SYS_madvise, (long)area->start, (long)size, MADV_DONTNEED, 0, 0) < 0) fail(71);
    } else if (area->kind == KIND_FILE) {
        int file = (int)sys_openat(AT_FDCWD, its_name(area), O_RDONLY | O_CLOEXEC);
        if (file < 0 || sys_mmap(area->start, size, protection, flags, file, area->offset) < 0) fail(72);
        sys_close(file);
    } else if (area->kind != KIND_STACK) {
        if (sys_mmap(area->start, size, protection, flags | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) < 0) fail(73);
    }
}

static void fill(int file, const struct run *run) {
    const struct area *area = &state.image.area[run->area];
    if (area->kind != KIND_STACK) {
        int flags = MAP_FIXED | MAP_PRIVATE | MAP_NORESERVE;
        if (sys_mmap(run->start, run->size, area->protection, flags, file, run->offset) < 0) fail(74);
        return;
    }
    for (uint64_t done = 0; done < run->size;) { /* copied, since a mapping of a file could not grow */
        long got = sys_pread(file, run->start + done, run->size - done, run->offset + done);
        if (got <= 0) fail(75);
        done += (uint64_t)got;
    }
}

static void __attribute__((noreturn, used)) become(long file) {
    struct image *image = &state.image;
    uint64_t brk = (uint64_t)call(SYS_brk, (long)image->brk, 0, 0, 0, 0);
    if (brk != image->brk) fail(70);
    for (uint32_t which = 0; which < state.own_count; which++) {
        enum kind kind = state.own[which].kind;
        if (kind != KIND_SKIP && kind != KIND_STACK && kind != KIND_HEAP) clear(&state.own[which]);
    }
    for (uint32_t which = 0; which < image->areas; which++)
        if (image->area[which].kind != KIND_SKIP) map_area(&image->area[which]);
    for (uint32_t which = 0; which < image->runs; which++) fill((int)file, &image->run[which]);
    for (int number = 1; number <= SIGNALS; number++)
        call(SYS_rt_sigaction, number, (long)&image->handlers[number - 1], 0, 8, 0);
    call(SYS_sigaltstack, (long)&image->other_stack, 0, 0, 0, 0);
    for (int which = 0; which < state.thread_ids; which++)
        *(int *)(void *)(thread_pointer() + state.thread_id[which]) = (int)call(SYS_gettid, 0, 0, 0, 0, 0);
    sys_close((int)file);
    go_back(image->registers);
}

/* Read only the used part of the tables: the rest would cost memory in each copy. */
static int read_part(int file, uint64_t offset, uint64_t size) {
    while (size) {
        long got = sys_pread(file, (uint64_t)&state.image + offset, size, offset);
        if (got <= 0) return got < 0 ? (int)got : -ANOTHER_ZYGOTE;
        offset += (uint64_t)got;
        size -= (uint64_t)got;
    }
    return 0;
}

/* Become the process that was saved to a file. Returns a negative number if that can't begin. */
__attribute__((visibility("default"), noinline)) long image_load(int file) {
    struct image *image = &state.image;
    struct list own = {state.own, &state.own_count, state.own_name, &state.own_names};
    int problem = read_part(file, 0, offsetof(struct image, area));
    if (problem) return problem;
    if (image->magic != MAGIC || image->cookie[0] != state.cookie[0] || image->cookie[1] != state.cookie[1] ||
        image->areas > MAX_AREAS || image->runs > MAX_RUNS || image->names > MAX_NAMES)
        return -ANOTHER_ZYGOTE;
    problem = read_part(file, offsetof(struct image, area), image->areas * sizeof *image->area);
    if (!problem) problem = read_part(file, offsetof(struct image, run), image->runs * sizeof *image->run);
    if (!problem) problem = read_part(file, offsetof(struct image, name), image->names);
    if (problem) return problem;
    image->name[MAX_NAMES - 1] = 0;
    problem = read_areas(&own);
    if (problem) return problem;
    for (uint32_t which = 0; which < image->areas; which++) {
        const struct area *area = &image->area[which];
        if (area->kind != KIND_FILE || is_here(area)) continue;
        long there = sys_openat(AT_FDCWD, its_name(area), O_RDONLY | O_CLOEXEC);
        if (there < 0) return there;
        sys_close((int)there);
    }
    char *top = state.stack + sizeof state.stack - 64;
#if defined __x86_64__
    __asm__ volatile("mov %0, %%rsp\n call *%1\n" ::"a"(top), "d"(become), "D"((long)file) : "memory");
#else
    register char *stack __asm__("x9") = top;
    register void *next __asm__("x10") = (void *)become;
    register long argument __asm__("x0") = file;
    __asm__ volatile("mov sp, %0\n blr %1\n" ::"r"(stack), "r"(next), "r"(argument) : "memory");
#endif
    __builtin_unreachable();
}

/* --- in the zygote and in each guest --- */

/* Note a random cookie of this zygote, and where the C library may keep the id of the only thread. */
__attribute__((visibility("default"))) void image_prepare(uint64_t first, uint64_t second) {
#if defined __x86_64__
    int from = 0, to = 2304; /* the C library's data is after the thread pointer */
#else
    int from = -2304, to = 0; /* here it is before it */
#endif
    int own = (int)call(SYS_gettid, 0, 0, 0, 0, 0);
    state.cookie[0] = first;
    state.cookie[1] = second;
    state.thread_ids = 0;
    for (int place = from; place < to && state.thread_ids < TIDS; place += 4)
        if (*(int *)(void *)(thread_pointer() + place) == own) state.thread_id[state.thread_ids++] = place;
}

/* After a fork: keep the places that contain the id of this process. */
__attribute__((visibility("default"))) void image_settle(void) {
    int own = (int)call(SYS_gettid, 0, 0, 0, 0, 0), kept = 0;
    for (int which = 0; which < state.thread_ids; which++)
        if (*(int *)(void *)(thread_pointer() + state.thread_id[which]) == own)
            state.thread_id[kept++] = state.thread_id[which];
    state.thread_ids = kept;
}
