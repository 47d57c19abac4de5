/* Feeds what cell.c reads with whatever comes on standard input: pieces, each with its length (four bytes) before it. */

#include "cell.c"

int main(void) {
    uint32_t size;
    unsigned long long pieces = 0;
    while (fread(&size, sizeof size, 1, stdin) == 1) {
        char *piece = malloc(size + 1);
        struct cell_order order;
        if (size && fread(piece, size, 1, stdin) != 1) return 1;
        memset(&order, 'x', sizeof order);
        memcpy(&order, piece, size < sizeof order ? size : sizeof order);
        is_whole(&order, size < sizeof order ? (ssize_t)size : (ssize_t)sizeof order, DESCRIPTORS);
        piece[size] = 0;
        cell_place_shown(piece, "/opt/project");
        free(piece);
        pieces++;
    }
    printf("%llu\n", pieces);
    return 0;
}
