/* Uses an image in all ways, whatever is wrong with it. */
#ifndef USE_H
#define USE_H

#include <stdint.h>
#include <sys/stat.h>

#include "check.h"
#include "redwarfs.h"

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

/* Returns whether the image could be opened. */
static int use_image(const void *data, size_t length, int deep)
{
    redwarfs_error *error = NULL;
    redwarfs_image *image;
    redwarfs_image_info info;
    uint64_t findings;
    uint32_t inode;
    steps = 0;
    if (failed(redwarfs_open_memory(data, length, NULL, &image, &error), &error))
        return 0;
    failed(redwarfs_info(image, &info, &error), &error);
    failed(redwarfs_verify(image, deep ? REDWARFS_DEEP : 0, NULL, NULL, &findings, &error), &error);
    failed(redwarfs_lookup(image, "foo/1/2/3/copy.sh", 0, &inode, &error), &error);
    use(image, 0, 0);
    redwarfs_close(image);
    return 1;
}

#endif
