/* What Redoma, the zygote and a cell's init tell each other. `cell.py` and `protocol.py` have the same in Python. */

#include <stdint.h>
#include <sys/socket.h>

/* The first letter of a frame; its length (four bytes, big-endian) and its payload follow. */
#define FRAME_INIT 'I'     /* a descriptor of the cell's init comes along */
#define FRAME_LAYER 'Y'    /* a descriptor of the layer above the project comes along */
#define FRAME_LISTENER 'S' /* a socket that listens on the cell's own loopback comes along */
#define FRAME_BROKEN 'X'   /* a step that failed: its name, a space, the errno */
#define FRAME_REPORT 'R'   /* what the guest left about itself */
#define FRAME_FILES 'W'    /* a descriptor of the workspace comes along */
#define FRAME_VERDICT 'V'  /* how it ended: struct verdict */
#define FRAME_HEADER 5

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

/* Process ids inside a cell. The guest is the first process that init forks, the holder the first that the guest clones. */
#define PID_INIT 1
#define PID_GUEST 2
#define PID_HOLDER 3

/* Descriptors of init: the control socket, a pipe that it closes once nobody can look into it any more, and a /proc that
 * shows the cell's processes, if the cell's own doesn't. */
#define CONTROL 3
#define HIDDEN 4
#define VIEW 5

/* The descriptor of the order socket in the guest. */
#define ORDER 3

/* What init is told when a run begins. */
struct run_order {
    uint64_t cpu_us;     /* processor time of all processes together */
    uint64_t memory;     /* bytes; only looked at if `watched` */
    uint32_t processes;  /* processes and threads; 0 if the kernel counts them */
    uint32_t max_report; /* bytes of the report */
    uint32_t watched;    /* no control group limits the memory: init does */
    uint32_t files;      /* send a descriptor of the workspace at the end */
    uint32_t wait;       /* answer only when every process has ended */
    uint32_t reserved;
};

/* One byte to init while a run is under way: this one ends it, any other is a signal for the guest. */
#define WORD_END 'e'

/* Why init ended a run. */
enum cause { CAUSE_NONE, CAUSE_END, CAUSE_CPU, CAUSE_PROCESSES, CAUSE_MEMORY };

struct verdict {
    uint32_t status; /* as wait(2) gives it */
    uint32_t cause;
    uint64_t cpu_us;
    uint64_t memory; /* bytes at the peak */
};

/* What a cell is to be, as Redoma asks the zygote for it. Descriptors come along: control, order, stdin, stdout, stderr,
 * and one of each control group to join. */
enum workspace { SCRATCH, READ_ONLY, OVERLAY };
struct cell_order {
    uint64_t disk; /* bytes of its own file system */
    uint64_t files;
    uint64_t seed;      /* for Python */
    uint32_t without;   /* a bit for each step to leave out, by its place in the list: for tests */
    uint32_t workspace; /* enum workspace */
    char project[4096]; /* where it is, or empty */
    char layer[64];     /* the name of its directory below /.changes, or empty: it is kept in memory */
    char place[256];    /* of a lean cell: its directory */
    uint32_t user;      /* of a lean cell: its own user and group, and the next number is its init's; 0: Redoma's */
    uint32_t listen;    /* the port of its own loopback that Redoma accepts connections at; 0 for none */
};
#define DESCRIPTORS 5

/* Where the zygote has directories of the host, each by a number; beside an `empty` one, and `root`: its own root without
 * what is mounted in it. configuration.py has the same. */
#define PARTS "/.parts"
#define MAX_GROUPS 2
