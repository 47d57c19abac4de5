/* The order that Redoma sends to the supervisor of a native run, and its reports. `backend.py` has the same in Python. */

#include <stdint.h>

#define LEASH 0 /* the supervisor's only descriptor at its start: a socket */

/* Descriptors that are passed over the leash with the first byte. */
enum given { GIVEN_ORDER, GIVEN_SOURCE, GIVEN_STDIN, GIVEN_STDOUT, GIVEN_STDERR, GIVEN_REDOMA, GIVEN };

#define SOURCE_FD 3 /* where the command finds the source text */
#define RLIMITS 5

/* The header of the order, which is a file. It is followed by zero-terminated strings: the working directory, the paths
 * where the program may be, its arguments, its variables, and the arguments of the command that removes the run's own
 * directory if Redoma can't do that any more. */
struct order {
    uint64_t memory; /* in bytes; like the two below, for all processes together */
    uint64_t cpu_us;
    uint64_t processes;
    uint64_t rlimits[RLIMITS][2]; /* which limit, and its value */
    uint32_t has_source;
    uint32_t paths, arguments, variables, removal; /* number of strings */
    uint32_t reserved;
};

enum kind { KIND_STARTED, KIND_ENDED, KIND_BROKEN };
enum cause { CAUSE_NONE, CAUSE_LEASH, CAUSE_MEMORY, CAUSE_PROCESSES, CAUSE_CPU };
enum step { STEP_PREPARE, STEP_ENTER, STEP_LIMIT, STEP_START };

struct report {
    uint32_t kind;
    uint32_t number; /* started: the process group; ended: the status, as wait(2) gives it; broken: enum step */
    uint32_t why;    /* ended: enum cause; broken: the errno */
    uint32_t reserved;
    uint64_t cpu_us;
    uint64_t memory; /* peak, in bytes */
};
