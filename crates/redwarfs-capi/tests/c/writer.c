/* Builds images, and checks what redwarfs_writer.h promises.
 *
 *     writer EMPTY-DIRECTORY
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "redwarfs_writer.h"

typedef struct {
    char *data;
    size_t length, capacity, limit;
} memory;

static int append(void *context, const void *data, size_t length)
{
    memory *m = context;
    if (m->limit && m->length + length > m->limit)
        return ENOSPC;
    if (m->length + length > m->capacity) {
        m->capacity = 2 * (m->length + length);
        m->data = realloc(m->data, m->capacity);
        CHECK(m->data != NULL);
    }
    memcpy(m->data + m->length, data, length);
    m->length += length;
    return 0;
}

static int slow(void *context, const void *data, size_t length)
{
    struct timespec pause = {0, 250000000};
    (void)context, (void)data, (void)length;
    nanosleep(&pause, NULL);
    return 0;
}

static int64_t numbers(void *context, void *buffer, size_t length)
{
    int *next = context;
    CHECK(length >= 65536);
    if (*next < 0)
        return *next;
    if (*next == 1000)
        return 0;
    return sprintf(buffer, "%d\n", (*next)++);
}

static int progress(void *context, const char *phase, uint64_t found, uint64_t packed, uint64_t written)
{
    int *calls = context;
    CHECK(phase[0] >= 'a' && phase[0] <= 'z' && found < 1u << 30 && packed < 1u << 30);
    if (strcmp(phase, "done") == 0)
        CHECK(written > 0);
    ++*calls;
    return 0;
}

static int refuses(void *context, const char *phase, uint64_t found, uint64_t packed, uint64_t written)
{
    (void)context, (void)phase, (void)found, (void)packed, (void)written;
    return 1;
}

/* Callbacks that try to use the builder which calls them. */
static void check_in_use(redwarfs_builder *builder)
{
    const redwarfs_code argument = REDWARFS_ERROR_ARGUMENT;
    FAILS(redwarfs_builder_set(builder, "order", "path", &error), argument, "in use");
    FAILS(redwarfs_builder_add_file(builder, "x", "", 0, NULL, &error), argument, "in use");
    FAILS(redwarfs_builder_write(builder, "x", 0, NULL, NULL, NULL, &error), argument, "in use");
    CHECK(redwarfs_builder_message(builder, 0) == NULL);
}

static int64_t uses_read(void *context, void *buffer, size_t length)
{
    (void)buffer, (void)length;
    check_in_use(context);
    return 0;
}

static int uses_write(void *context, const void *data, size_t length)
{
    (void)data, (void)length;
    check_in_use(context);
    return 0;
}

static int uses_progress(void *context, const char *phase, uint64_t found, uint64_t packed, uint64_t written)
{
    (void)phase, (void)found, (void)packed, (void)written;
    check_in_use(context);
    return 0;
}

static void check_callbacks(void)
{
    redwarfs_builder *builder;
    OK(redwarfs_builder_new(NULL, 1, &builder, &error));
    OK(redwarfs_builder_add_stream(builder, "x", uses_read, builder, NULL, &error));
    OK(redwarfs_builder_set(builder, "order", "path", &error));
    OK(redwarfs_builder_write_stream(builder, uses_write, builder, 0, uses_progress, builder, NULL, &error));
    redwarfs_builder_free(builder);
}

static void content(const redwarfs_image *image, const char *path, const char *wanted)
{
    static char buffer[10000];
    uint32_t inode;
    size_t done;
    OK(redwarfs_lookup(image, path, 0, &inode, &error));
    OK(redwarfs_read(image, inode, 0, buffer, sizeof buffer, &done, &error));
    CHECK(done == strlen(wanted) && memcmp(buffer, wanted, done) == 0);
}

static redwarfs_attributes attributes(const redwarfs_image *image, const char *path)
{
    redwarfs_attributes found;
    uint32_t inode;
    OK(redwarfs_lookup(image, path, REDWARFS_NO_FOLLOW, &inode, &error));
    OK(redwarfs_stat(image, inode, &found, &error));
    return found;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void check_entries(void)
{
    redwarfs_builder *builder;
    redwarfs_summary summary;
    redwarfs_image *image;
    redwarfs_attributes found;
    redwarfs_entry_attributes mine = {sizeof mine, 0640, 1000, 100, 5, 1600000000};
    char target[20], expected[5000] = "";
    size_t length;
    int next = 0, calls = 0;
    const redwarfs_code argument = REDWARFS_ERROR_ARGUMENT;

    write_file("disk", "on disk");
    CHECK(chmod("disk", 0600) == 0);
    OK(redwarfs_builder_new(NULL, 4, &builder, &error));
    OK(redwarfs_builder_set(builder, "block-size-bits", "16", &error));
    OK(redwarfs_builder_set(builder, "with_specials", "true", &error));
    OK(redwarfs_builder_set(builder, "time-resolution", "1ns", &error));
    FAILS(redwarfs_builder_set(builder, "order", "random", &error), REDWARFS_ERROR_OPTION, "random");
    FAILS(redwarfs_builder_set(builder, "colour", "red", &error), REDWARFS_ERROR_OPTION, "colour");
    OK(redwarfs_builder_add_file(builder, "a/b/file", "data", 4, &mine, &error));
    OK(redwarfs_builder_add_file(builder, "empty", NULL, 0, NULL, &error));
    OK(redwarfs_builder_add_stream(builder, "numbers", numbers, &next, NULL, &error));
    next = -ETIMEDOUT;
    redwarfs_error *failure = NULL;
    CHECK(redwarfs_builder_add_stream(builder, "late", numbers, &next, NULL, &failure) == REDWARFS_ERROR_IO);
    CHECK(redwarfs_error_errno(failure) == ETIMEDOUT);
    redwarfs_error_free(failure);
    OK(redwarfs_builder_add_disk_file(builder, "disk", "disk", NULL, &error));
    OK(redwarfs_builder_add_disk_file(builder, "disk2", "disk", &mine, &error));
    OK(redwarfs_builder_add_directory(builder, "a", NULL, &error));
    OK(redwarfs_builder_add_directory(builder, "", &mine, &error));
    OK(redwarfs_builder_add_symlink(builder, "link", "a/b/file", NULL, &error));
    OK(redwarfs_builder_add_hard_link(builder, "hard", "a/b/file", &error));
    OK(redwarfs_builder_add_special(builder, "fifo", S_IFIFO, 0, NULL, &error));
    FAILS(redwarfs_builder_add_file(builder, "a", "", 0, NULL, &error), REDWARFS_ERROR_IO, "a");
    FAILS(redwarfs_builder_add_file(builder, "../x", "", 0, NULL, &error), REDWARFS_ERROR_IO, "x");
    FAILS(redwarfs_builder_add_file(builder, NULL, "", 0, NULL, &error), argument, "path");
    FAILS(redwarfs_builder_add_file(builder, "x", NULL, 1, NULL, &error), argument, "data");
    FAILS(redwarfs_builder_add_stream(builder, "x", NULL, NULL, NULL, &error), argument, "read");
    FAILS(redwarfs_builder_add_special(builder, "x", 7, 0, NULL, &error), argument, "type");
    FAILS(redwarfs_builder_add_disk_file(builder, "x", "missing", NULL, &error), REDWARFS_ERROR_IO, "missing");
    mine.mtime_nsec = 1000000000;
    FAILS(redwarfs_builder_add_file(builder, "x", "", 0, &mine, &error), argument, "mtime_nsec");
    mine.size = 4;
    FAILS(redwarfs_builder_add_file(builder, "x", "", 0, &mine, &error), argument, "size");
    OK(redwarfs_builder_write(builder, "out", 0, progress, &calls, &summary, &error));
    CHECK(calls > 0 && summary.image_size > 0 && summary.inodes == 10 && summary.errors == 0);
    CHECK(summary.messages == 0 && redwarfs_builder_message(builder, 0) == NULL);
    FAILS(redwarfs_builder_write(builder, "out2", 0, NULL, NULL, NULL, &error), argument, "used");
    FAILS(redwarfs_builder_add_file(builder, "x", "", 0, NULL, &error), argument, "used");
    redwarfs_builder_free(builder);

    OK(redwarfs_open("out", NULL, &image, &error));
    content(image, "a/b/file", "data");
    content(image, "link", "data");
    content(image, "empty", "");
    content(image, "disk", "on disk");
    for (int i = 0; i < 1000; i++)
        sprintf(expected + strlen(expected), "%d\n", i);
    content(image, "numbers", expected);
    found = attributes(image, "a/b/file");
    CHECK(found.mode == (S_IFREG | 0640) && found.uid == 1000 && found.gid == 100 && found.links == 2);
    CHECK(found.mtime == 1600000000 && found.mtime_nsec == 5);
    CHECK(found.inode == attributes(image, "hard").inode);
    CHECK(attributes(image, "disk").mode == (S_IFREG | 0600));
    CHECK(attributes(image, "disk2").mode == (S_IFREG | 0640));
    CHECK(attributes(image, "").mode == (S_IFDIR | 0640) && attributes(image, "a").mtime == 0);
    CHECK(S_ISFIFO(attributes(image, "fifo").mode));
    found = attributes(image, "link");
    OK(redwarfs_readlink(image, found.inode, target, sizeof target, &length, &error));
    CHECK(strcmp(target, "a/b/file") == 0);
    redwarfs_close(image);
}

/* Extended attributes, where the file system has them. */
static void check_attributes(void)
{
    redwarfs_builder *builder;
    redwarfs_image *image;
    memory m = {0};
    char buffer[100];
    uint32_t inode;
    size_t length;
    CHECK(mkdir("marked", 0755) == 0);
    write_file("marked/file", "content");
    write_file("marked/plain", "content");
    if (setxattr("marked/file", "user.one", "1", 1, 0) || setxattr("marked/file", "user.two", "a\0b", 3, 0)) {
        fprintf(stderr, "SKIPPED: extended attributes in C: the file system has none\n");
        return;
    }
    OK(redwarfs_builder_new("marked", 1, &builder, &error));
    OK(redwarfs_builder_write_stream(builder, append, &m, 0, NULL, NULL, NULL, &error));
    redwarfs_builder_free(builder);
    OK(redwarfs_open_memory(m.data, m.length, NULL, &image, &error));
    free(m.data);
    OK(redwarfs_lookup(image, "file", 0, &inode, &error));
    OK(redwarfs_listxattr(image, inode, buffer, sizeof buffer, &length, &error));
    CHECK(length == 18 && memcmp(buffer, "user.one\0user.two", 18) == 0);
    FAILS(redwarfs_listxattr(image, inode, buffer, 17, &length, &error), REDWARFS_ERROR_RANGE, "18 bytes");
    CHECK(length == 18);
    OK(redwarfs_getxattr(image, inode, "user.two", buffer, 3, &length, &error));
    CHECK(length == 3 && memcmp(buffer, "a\0b", 3) == 0);
    FAILS(redwarfs_getxattr(image, inode, "user.two", NULL, 0, &length, &error), REDWARFS_ERROR_RANGE, "3 bytes");
    CHECK(length == 3);
    FAILS(redwarfs_getxattr(image, inode, "user.no", buffer, 3, &length, &error), REDWARFS_ERROR_NOT_FOUND, "user.no");
    FAILS(redwarfs_getxattr(image, inode, NULL, buffer, 3, &length, &error), REDWARFS_ERROR_ARGUMENT, "name");
    OK(redwarfs_lookup(image, "plain", 0, &inode, &error));
    OK(redwarfs_listxattr(image, inode, NULL, 0, &length, &error));
    CHECK(length == 0);
    FAILS(redwarfs_listxattr(image, 4000000, NULL, 0, &length, &error), REDWARFS_ERROR_CORRUPT, "inode");
    redwarfs_close(image);
}

static void check_directory(void)
{
    redwarfs_builder *builder;
    redwarfs_summary summary;
    redwarfs_image *image;
    memory first = {0}, second = {0}, small = {0};
    const redwarfs_code argument = REDWARFS_ERROR_ARGUMENT;
    struct stat before, after;

    CHECK(mkdir("tree", 0755) == 0 && mkdir("tree/sub", 0755) == 0);
    write_file("tree/sub/file", "content");
    OK(redwarfs_builder_new("tree", 1, &builder, &error));
    OK(redwarfs_builder_write_stream(builder, append, &first, 0, NULL, NULL, &summary, &error));
    OK(redwarfs_builder_set(builder, "num-workers", "3", &error));
    OK(redwarfs_builder_write_stream(builder, append, &second, 0, NULL, NULL, NULL, &error));
    CHECK(first.length == summary.image_size && first.length == second.length);
    CHECK(memcmp(first.data, second.data, first.length) == 0);
    OK(redwarfs_open_memory(first.data, first.length, NULL, &image, &error));
    content(image, "sub/file", "content");
    redwarfs_close(image);

    small.limit = 100;
    redwarfs_error *failure = NULL;
    CHECK(redwarfs_builder_write_stream(builder, append, &small, 0, NULL, NULL, NULL, &failure) ==
          REDWARFS_ERROR_IO);
    CHECK(redwarfs_error_errno(failure) == ENOSPC);
    redwarfs_error_free(failure);
    FAILS(redwarfs_builder_write_stream(builder, slow, NULL, 0, refuses, NULL, NULL, &error),
          REDWARFS_ERROR_INTERRUPTED, "interrupted");
    FAILS(redwarfs_builder_write_stream(builder, NULL, NULL, 0, NULL, NULL, NULL, &error), argument, "write");
    FAILS(redwarfs_builder_write_stream(builder, slow, NULL, REDWARFS_OVERWRITE, NULL, NULL, NULL, &error),
          argument, "flags");
    FAILS(redwarfs_builder_add_file(builder, "x", "", 0, NULL, &error), argument, "directory");

    /* An existing file stays as it is. */
    write_file("mine", "mine");
    CHECK(stat("mine", &before) == 0);
    failure = NULL;
    CHECK(redwarfs_builder_write(builder, "mine", 0, NULL, NULL, NULL, &failure) == REDWARFS_ERROR_IO);
    CHECK(redwarfs_error_errno(failure) == EEXIST);
    redwarfs_error_free(failure);
    CHECK(stat("mine", &after) == 0 && before.st_ino == after.st_ino && after.st_size == 4);
    OK(redwarfs_builder_write(builder, "mine", REDWARFS_OVERWRITE, NULL, NULL, NULL, &error));
    CHECK(stat("mine", &after) == 0 && after.st_size == (off_t)first.length);
    redwarfs_builder_free(builder);

    OK(redwarfs_builder_new("missing", 1, &builder, &error));
    FAILS(redwarfs_builder_write(builder, "x", 0, NULL, NULL, NULL, &error), REDWARFS_ERROR_IO, "missing");
    redwarfs_builder_free(builder);
    FAILS(redwarfs_builder_new(NULL, 10, &builder, &error), argument, "level");
    FAILS(redwarfs_builder_new(NULL, 1, NULL, &error), argument, "builder");
    FAILS(redwarfs_builder_set(NULL, "order", "path", &error), argument, "builder");
    redwarfs_builder_free(NULL);
    free(first.data);
    free(second.data);
    free(small.data);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && chdir(argv[1]) == 0);
    check_entries();
    check_directory();
    check_attributes();
    check_callbacks();
    return 0;
}
