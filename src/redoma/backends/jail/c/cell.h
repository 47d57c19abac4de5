/* The messages between Redoma, the zygote and a cell's init. compiled.py and protocol.py have the same in Python. */

#include <stdint.h>
#include <sys/socket.h>

/* The first letter of a frame; its length (four bytes, big-endian) and its payload follow. */
#define FRAME_INIT 'I'     /* with a pidfd of the cell's init */
#define FRAME_LAYER 'Y'    /* with a descriptor of the layer above the project */
#define FRAME_LISTENER 'S' /* with a socket that listens on the cell's own loopback */
#define FRAME_BROKEN 'X'   /* a step that failed: its name, a space, the errno */
#define FRAME_REPORT 'R'   /* the guest's report on itself */
#define FRAME_FILES 'W'    /* with a descriptor of the workspace */
#define FRAME_VERDICT 'V'  /* how it ended: struct verdict */
#define FRAME_HEADER 5

static inline void put_header(char *place, char kind, uint32_t size) {
    place[0] = kind;
    for (int byte = 0; byte < 4; byte++) place[1 + byte] = (char)(size >> (24 - 8 * byte));
}

/* Let a message carry a descriptor, in `space` of CMSG_SPACE(sizeof(int)) bytes. */
static inline void attach_descriptor(struct msghdr *message, char *space, int descriptor) {
    message->msg_control = space;
    message->msg_controllen = CMSG_SPACE(sizeof(int));
    struct cmsghdr *with = CMSG_FIRSTHDR(message);
    with->cmsg_level = SOL_SOCKET;
    with->cmsg_type = SCM_RIGHTS;
    with->cmsg_len = CMSG_LEN(sizeof(int));
    *(int *)(void *)CMSG_DATA(with) = descriptor;
}

/* Process ids in a cell. The guest is the first process that init forks, the holder or the helper the first that the
 * guest clones. */
#define PID_INIT 1
#define PID_GUEST 2
#define PID_HOLDER 3

/* Descriptors of init: the control socket, a pipe that it closes once it can't be traced or read any more, and a /proc
 * that shows the cell's processes, if the cell's own doesn't. */
#define CONTROL 3
#define HIDDEN 4
#define VIEW 5

/* The descriptor of the order socket in the guest. */
#define ORDER 3

/* The order that init gets when a run begins. */
struct run_order {
    uint64_t cpu_us;     /* processor time of all processes together */
    uint64_t memory;     /* bytes; used only if `watched` */
    uint32_t processes;  /* processes and threads; 0 if the kernel counts them */
    uint32_t max_report; /* bytes of the report */
    uint32_t watched;    /* init limits the memory, because no control group does */
    uint32_t files;      /* send a descriptor of the workspace at the end */
    uint32_t wait;       /* report only when every process has ended */
    uint32_t helper;     /* the cell has a helper instead of a holder */
};

/* A byte to init during a run: this one ends the run, any other is a signal for the guest. */
#define WORD_END 'e'

/* Why init ended a run. */
enum cause { CAUSE_NONE, CAUSE_END, CAUSE_CPU, CAUSE_PROCESSES, CAUSE_MEMORY };

struct verdict {
    uint32_t status; /* as wait(2) gives it */
    uint32_t cause;
    uint64_t cpu_us;
    uint64_t memory; /* bytes at the peak */
};

/* Redoma's order for a cell. It comes with descriptors: control, order, stdin, stdout, stderr, and one for each control
 * group to join. */
enum workspace { SCRATCH, READ_ONLY, OVERLAY };
struct cell_order {
    uint64_t disk; /* size of its own file system in bytes */
    uint64_t files;
    uint64_t seed;      /* for Python */
    uint32_t without;   /* a bit for each step to leave out, by its index in `names`: for tests */
    uint32_t workspace; /* enum workspace */
    char project[4096]; /* its path, or empty */
    char layer[64];     /* the name of its directory below /.changes; empty to keep changes in memory */
    char place[256];    /* of a lean cell: its directory */
    uint32_t user;      /* of a lean cell: its user and group id, and the next one is its init's; 0 for Redoma's own */
    uint32_t listen;    /* the port on its loopback at which Redoma accepts connections; 0 for none */
    uint32_t ahead;     /* for Python: a first message on the order socket names a program to start ahead of the run */
    uint32_t warm;      /* for Python: run a small program first, which makes the cell later and its run faster */
};
#define DESCRIPTORS 5

/* Where the zygote has directories of the host, under numbers; besides `empty`, an empty one, and `root`, its own root
 * without the mounts in it. configuration.py has the same path. */
#define PARTS "/.parts"
#define MAX_GROUPS 2
