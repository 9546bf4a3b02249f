/* Uses damaged images, which must give errors and nothing worse.
 *
 *     hostile NUMBER-OF-IMAGES IMAGE...
 */
#include <stdint.h>
#include <sys/stat.h>

#include "check.h"
#include "redwarfs.h"

static uint64_t state = 88172645463325252u;

/* A number below `limit`: xorshift, the same in each run. */
static size_t below(size_t limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (size_t)(state % limit);
}

static int steps, failures;

/* Counts a failure. The code and the message of each are there. */
static int failed(redwarfs_code code, redwarfs_error **error)
{
    if (code == REDWARFS_OK) {
        CHECK(*error == NULL);
        return 0;
    }
    CHECK(code != REDWARFS_ERROR_INTERNAL && code != REDWARFS_ERROR_ARGUMENT);
    CHECK(redwarfs_error_code(*error) == code && *redwarfs_error_message(*error) != 0);
    redwarfs_error_free(*error);
    *error = NULL;
    failures++;
    return 1;
}

static void use(const redwarfs_image *image, uint32_t inode, int depth)
{
    static char buffer[1 << 16];
    redwarfs_error *error = NULL;
    redwarfs_attributes found;
    size_t done;
    if (depth > 20 || ++steps > 2000)
        return;
    failed(redwarfs_listxattr(image, inode, buffer, sizeof buffer, &done, &error), &error);
    if (failed(redwarfs_stat(image, inode, &found, &error), &error))
        return;
    if (S_ISREG(found.mode)) {
        uint64_t offset = found.size > sizeof buffer ? found.size - sizeof buffer : 0;
        failed(redwarfs_read(image, inode, 0, buffer, sizeof buffer, &done, &error), &error);
        failed(redwarfs_read(image, inode, offset, buffer, sizeof buffer, &done, &error), &error);
    } else if (S_ISLNK(found.mode)) {
        failed(redwarfs_readlink(image, inode, buffer, sizeof buffer, &done, &error), &error);
    } else if (S_ISDIR(found.mode)) {
        redwarfs_directory *directory;
        redwarfs_directory_entry entry;
        if (failed(redwarfs_opendir(image, inode, &directory, &error), &error))
            return;
        while (++steps <= 2000) {
            uint32_t again;
            if (failed(redwarfs_readdir(directory, &entry, &error), &error))
                continue;
            if (entry.name == NULL)
                break;
            CHECK(strlen(entry.name) == entry.name_length && strchr(entry.name, '/') == NULL);
            failed(redwarfs_lookup_at(image, inode, entry.name, &again, &error), &error);
            use(image, entry.inode, depth + 1);
        }
        redwarfs_closedir(directory);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc > 2);
    int count = atoi(argv[1]), opened = 0;
    for (int number = 0; number < count; number++) {
        redwarfs_error *error = NULL;
        redwarfs_image *image;
        redwarfs_image_info info;
        uint64_t findings;
        uint32_t inode;
        FILE *file = fopen(argv[2 + number % (argc - 2)], "rb");
        CHECK(file != NULL && fseek(file, 0, SEEK_END) == 0);
        size_t length = (size_t)ftell(file);
        char *data = malloc(length);
        rewind(file);
        CHECK(data != NULL && fread(data, 1, length, file) == length);
        fclose(file);
        for (size_t change = 1 + below(4); change > 0; change--) {
            /* Mostly in the metadata, which is at the end. */
            size_t at = below(2) ? below(length) : length - 1 - below(length < 2000 ? length : 2000);
            data[at] = below(2) ? (char)below(256) : (char)(data[at] ^ 1 << below(8));
        }
        if (below(8) == 0)
            length = below(length);
        steps = 0;
        if (!failed(redwarfs_open_memory(data, length, NULL, &image, &error), &error)) {
            opened++;
            failed(redwarfs_info(image, &info, &error), &error);
            failed(redwarfs_verify(image, below(2) ? REDWARFS_DEEP : 0, NULL, NULL, &findings, &error), &error);
            failed(redwarfs_lookup(image, "foo/1/2/3/copy.sh", 0, &inode, &error), &error);
            use(image, 0, 0);
            redwarfs_close(image);
        }
        free(data);
    }
    printf("%d opened, %d failures\n", opened, failures);
    return opened == 0 || failures == 0;
}
