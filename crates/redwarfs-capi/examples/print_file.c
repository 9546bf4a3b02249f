/* Prints one file of an image, or lists a directory:
 *
 *     cc print_file.c $(pkg-config --cflags --libs redwarfs) -o print_file
 *     ./print_file photos.dwarfs 2024/index.html
 */
#include <redwarfs.h>
#include <stdio.h>
#include <sys/stat.h>

static int fail(const char *what, redwarfs_error *error)
{
    fprintf(stderr, "print_file: %s: %s\n", what, redwarfs_error_message(error));
    redwarfs_error_free(error);
    return 1;
}

static int list(const redwarfs_image *image, uint32_t inode, const char *path)
{
    redwarfs_error *error = NULL;
    redwarfs_directory *directory;
    redwarfs_directory_entry entry;
    if (redwarfs_opendir(image, inode, &directory, &error))
        return fail(path, error);
    for (;;) {
        if (redwarfs_readdir(directory, &entry, &error)) {
            redwarfs_closedir(directory);
            return fail(path, error);
        }
        if (entry.name == NULL)
            break;
        printf("%s%s\n", entry.name, S_ISDIR(entry.type) ? "/" : "");
    }
    redwarfs_closedir(directory);
    return 0;
}

static int print(const redwarfs_image *image, uint32_t inode, const char *path)
{
    static char buffer[1 << 16];
    redwarfs_error *error = NULL;
    uint64_t offset = 0;
    size_t done;
    do {
        if (redwarfs_read(image, inode, offset, buffer, sizeof buffer, &done, &error))
            return fail(path, error);
        if (fwrite(buffer, 1, done, stdout) != done)
            return 1;
        offset += done;
    } while (done == sizeof buffer);
    return 0;
}

int main(int argc, char **argv)
{
    redwarfs_error *error = NULL;
    redwarfs_image *image;
    redwarfs_attributes attributes;
    uint32_t inode;
    int code;
    if (argc != 3) {
        fprintf(stderr, "usage: print_file IMAGE PATH\n");
        return 2;
    }
    if (redwarfs_open(argv[1], NULL, &image, &error))
        return fail(argv[1], error);
    if (redwarfs_lookup(image, argv[2], 0, &inode, &error) ||
        redwarfs_stat(image, inode, &attributes, &error))
        code = fail(argv[2], error);
    else if (S_ISDIR(attributes.mode))
        code = list(image, inode, argv[2]);
    else
        code = print(image, inode, argv[2]);
    redwarfs_close(image);
    return code;
}
