/* Feeds what init.c reads with whatever comes on standard input: pieces, each with its length (four bytes) before it. */

#define WITH_LIBRARY
#include "init.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int count(uint32_t pid, void *with) {
    *(uint64_t *)with += pid;
    return pid == 4711;
}

int main(void) {
    static const char *const words[] = {"VmRSS:", "VmPTE:", "Pss:", NULL};
    uint32_t size;
    uint64_t sum = 0, pieces = 0;
    while (fread(&size, sizeof size, 1, stdin) == 1) {
        char *piece = malloc(size ? size : 1); /* exactly as large as it is: one byte beyond is noticed */
        struct stat_fields fields;
        if (size && fread(piece, size, 1, stdin) != 1) return 1;
        sum += read_number(piece, piece + size);
        if (parse_stat(piece, size, &fields) == 0) sum += fields.utime + fields.stack;
        sum += sum_lines(piece, size, words);
        each_process(piece, (long)size, count, &sum);
        uint64_t partial = 0;
        tree.count = 0;
        add_numbers(piece, size, &partial);
        sort_tree();
        sum += partial + tree.count;
        free(piece);
        pieces++;
    }
    (void)sum;
    printf("%llu\n", (unsigned long long)pieces);
    return 0;
}
