/* Uses damaged images, which must give errors and nothing worse.
 *
 *     hostile NUMBER-OF-IMAGES IMAGE...
 *
 * With 0 as the number, it uses every image as it is.
 */
#include "use.h"

static uint64_t state = 88172645463325252u;

/* A number below `limit`: xorshift, the same in each run. */
static size_t below(size_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (size_t)(state % limit);
}

int main(int argc, char **argv)
{
    CHECK(argc > 2);
    int count = atoi(argv[1]), opened = 0;
    int as_it_is = count == 0;
    if (as_it_is)
        count = argc - 2;
    for (int number = 0; number < count; number++) {
        FILE *file = fopen(argv[2 + number % (argc - 2)], "rb");
        CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
        size_t length = (size_t)ftell(file);
        char *data = malloc(length + 1);
        rewind(file);
        CHECK(data != NULL && fread(data, 1, length, file) == length);
        fclose(file);
        for (size_t change = as_it_is ? 0 : 1 + below(4); change > 0; change--) {
            /* Mostly in the metadata, which is at the end. */
            size_t at = below(2) ? below(length) : length - 1 - below(length < 2000 ? length : 2000);
            data[at] = below(2) ? (char)below(256) : (char)(data[at] ^ 1 << below(8));
        }
        if (!as_it_is && below(8) == 0)
            length = below(length);
        opened += use_image(data, length, as_it_is || below(2));
        free(data);
    }
    printf("%d opened, %d failures\n", opened, failures);
    return opened == 0 || failures == 0;
}
