/* System calls without a C library: they return a negative errno.
 *
 * A program that includes this defines `run_program`, which gets the program's first argument and returns its exit status.
 * A shared library defines WITHOUT_START first; tests, which have a C library and sanitizers, WITH_LIBRARY. */

#include <stdint.h>
#include <time.h>

#if defined __x86_64__

static inline long call6(long number, long a, long b, long c, long d, long e, long f) {
    long answer;
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    register long sixth __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "rcx", "r11", "memory");
    return answer;
}

/* The kernel begins here, with the arguments on the stack. */
#define BEGIN __asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");

#elif defined __aarch64__

static inline long call6(long number, long a, long b, long c, long d, long e, long f) {
    register long which __asm__("x8") = number;
    register long first __asm__("x0") = a;
    register long second __asm__("x1") = b;
    register long third __asm__("x2") = c;
    register long fourth __asm__("x3") = d;
    register long fifth __asm__("x4") = e;
    register long sixth __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(first)
                     : "r"(which), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "memory");
    return first;
}

#define BEGIN __asm__(".globl _start\n_start:\n mov x29, #0\n mov x30, #0\n mov x0, sp\n bl begin\n");

#else
#error "this has been written for x86-64 and aarch64"
#endif

static inline long call(long number, long a, long b, long c, long d, long e) {
    return call6(number, a, b, c, d, e, 0);
}

static inline long sys_openat(int directory, const char *path, int flags) {
    return call(SYS_openat, directory, (long)path, flags, 0, 0);
}
static inline long sys_close(int file) { return call(SYS_close, file, 0, 0, 0, 0); }
static inline long sys_read(int file, void *buffer, size_t size) {
    return call(SYS_read, file, (long)buffer, (long)size, 0, 0);
}
static inline long sys_fstat(int file, struct stat *about) { return call(SYS_fstat, file, (long)about, 0, 0, 0); }
static inline long sys_statfs(const char *path, struct statfs *about) {
    return call(SYS_statfs, (long)path, (long)about, 0, 0, 0);
}
static inline long sys_getdents64(int directory, void *entries, size_t size) {
    return call(SYS_getdents64, directory, (long)entries, (long)size, 0, 0);
}
static inline long sys_readlinkat(int directory, const char *path, char *buffer, size_t size) {
    return call(SYS_readlinkat, directory, (long)path, (long)buffer, (long)size, 0);
}
static inline long sys_fchmodat(int directory, const char *path, unsigned mode) {
    return call(SYS_fchmodat, directory, (long)path, mode, 0, 0);
}
static inline long sys_recvfrom(int socket, void *buffer, size_t size) {
    return call(SYS_recvfrom, socket, (long)buffer, (long)size, 0, 0);
}
static inline long sys_sendto(int socket, const void *data, size_t size, int flags) {
    return call(SYS_sendto, socket, (long)data, (long)size, flags, 0);
}
static inline long sys_sendmsg(int socket, const struct msghdr *message, int flags) {
    return call(SYS_sendmsg, socket, (long)message, flags, 0, 0);
}
static inline long sys_wait4(int pid, int *status, int options) {
    return call(SYS_wait4, pid, (long)status, options, 0, 0);
}
static inline long sys_waitid(int kind, int pid, siginfo_t *about, int options, struct rusage *usage) {
    return call(SYS_waitid, kind, pid, (long)about, options, (long)usage);
}
static inline long sys_kill(int pid, int number) { return call(SYS_kill, pid, number, 0, 0, 0); }
static inline long sys_getrusage(int who, struct rusage *usage) {
    return call(SYS_getrusage, who, (long)usage, 0, 0, 0);
}
static inline long sys_getppid(void) { return call(SYS_getppid, 0, 0, 0, 0, 0); }
static inline long sys_getuid(void) { return call(SYS_getuid, 0, 0, 0, 0, 0); }
static inline long sys_setresuid(long real, long effective, long saved) {
    return call(SYS_setresuid, real, effective, saved, 0, 0);
}
static inline long sys_prctl(int option, long value) { return call(SYS_prctl, option, value, 0, 0, 0); }
static inline long sys_seccomp(int operation, int flags, const void *program) {
    return call(SYS_seccomp, operation, flags, (long)program, 0, 0);
}
static inline long sys_signalfd(const uint64_t *mask) {
    return call(SYS_signalfd4, -1, (long)mask, sizeof *mask, O_CLOEXEC | O_NONBLOCK, 0);
}
static inline long sys_poll(struct pollfd *descriptors, size_t count, int milliseconds) {
    struct timespec time = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    return call(SYS_ppoll, (long)descriptors, (long)count, milliseconds < 0 ? 0 : (long)&time, 0, 0);
}
static inline uint64_t now_ms(void) {
    struct timespec time;
    call(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&time, 0, 0, 0);
    return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

int run_program(const char *argument);

#if !defined WITH_LIBRARY && !defined WITHOUT_START

BEGIN

/* `stack` begins with the number of arguments, then their addresses. */
__attribute__((noreturn, used)) void begin(const long *stack) {
    long count = stack[0];
    const char *const *arguments = (const char *const *)(stack + 1);
    long status = run_program(count > 1 ? arguments[1] : "");
    for (;;) call(SYS_exit_group, status, 0, 0, 0, 0);
}

#endif

#ifndef WITH_LIBRARY

/* The compiler may call these where a structure is copied or cleared. Volatile, or it could do so in them, too. */
__attribute__((visibility("hidden"))) void *memcpy(void *to, const void *from, size_t size) {
    char *target = to;
    const char *source = from;
    while (size--) *(volatile char *)target++ = *source++;
    return to;
}
__attribute__((visibility("hidden"))) void *memset(void *to, int value, size_t size) {
    char *target = to;
    while (size--) *(volatile char *)target++ = (char)value;
    return to;
}

#endif
