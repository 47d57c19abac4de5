/* Feeds what supervisor.c reads with whatever comes on standard input: pieces, each with its length (four bytes) before
 * it. The first bytes of a piece say how many texts an order claims to have. */

#define WITH_LIBRARY
#include "supervisor.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    uint32_t size;
    uint64_t sum = 0, pieces = 0;
    while (fread(&size, sizeof size, 1, stdin) == 1) {
        char *piece = malloc(size ? size : 1); /* exactly as large as it is: one byte beyond is noticed */
        if (size && fread(piece, size, 1, stdin) != 1) return 1;
        struct order head = {0};
        struct command command = {0};
        head.paths = size > 0 ? (unsigned char)piece[0] % 5 : UINT32_MAX;
        head.arguments = size > 1 ? (unsigned char)piece[1] % 5 : 1;
        head.variables = size > 2 ? (unsigned char)piece[2] : UINT32_MAX - 1;
        head.removal = size > 3 && piece[3] & 1 ? 7 : 0;
        if (parse_order(&head, piece, size, &command)) {
            sum += length_of(command.directory);
            for (char **each = command.arguments; *each; each++) sum += length_of(*each);
            for (char **each = command.variables; *each; each++) sum += length_of(*each);
        }
        uint64_t unfinished = 0;
        tree_size = 0;
        add_numbers(piece, size / 2, &unfinished);
        add_numbers(piece + size / 2, size - size / 2, &unfinished);
        add_numbers(" ", 1, &unfinished);
        for (uint32_t which = 0; which < tree_size; which++) sum += tree[which];
        free(piece);
        pieces++;
    }
    (void)sum;
    printf("%llu\n", (unsigned long long)pieces);
    return 0;
}
