/* Builds DwarFS images. Made from the source of redwarfs-capi; do not edit.
 *
 * The rules of redwarfs.h hold here, too. The same input, options and version give the same image, for
 * any number of threads.
 */

#ifndef REDWARFS_WRITER_H
#define REDWARFS_WRITER_H

#include "redwarfs.h"

/**
 * Replace an existing file.
 */
#define REDWARFS_OVERWRITE 1

/**
 * Store everything else if an entry of the input cannot be read.
 */
#define REDWARFS_CONTINUE_ON_ERROR 2

/**
 * An image that is to be built.
 */
typedef struct redwarfs_builder redwarfs_builder;

/**
 * Attributes of a new entry.
 */
typedef struct {
    /**
     * `sizeof(redwarfs_entry_attributes)`.
     */
    size_t size;
    /**
     * Permission bits, `07777`.
     */
    uint32_t permissions;
    /**
     * Owner.
     */
    uint32_t uid;
    /**
     * Group.
     */
    uint32_t gid;
    /**
     * Nanoseconds of `mtime`, below 1,000,000,000.
     */
    uint32_t mtime_nsec;
    /**
     * Time of modification, seconds since 1970.
     */
    int64_t mtime;
} redwarfs_entry_attributes;

/**
 * Tells the state of a build ten times a second, in the thread that called the build: the name of
 * the phase, bytes of input found, bytes put into blocks, bytes written. A value other than 0 ends the
 * build with `REDWARFS_ERROR_INTERRUPTED`.
 */
typedef int (*redwarfs_progress)(void *context,
                                 const char *phase,
                                 uint64_t found,
                                 uint64_t packed,
                                 uint64_t written);

/**
 * The result of a build.
 */
typedef struct {
    /**
     * Bytes of the image.
     */
    uint64_t image_size;
    /**
     * Bytes of regular files and targets of symbolic links.
     */
    uint64_t original_size;
    /**
     * Number of blocks.
     */
    uint64_t blocks;
    /**
     * Number of inodes.
     */
    uint64_t inodes;
    /**
     * Entries that were not stored unchanged, with `REDWARFS_CONTINUE_ON_ERROR`.
     */
    uint64_t errors;
    /**
     * Number of messages that `redwarfs_builder_message` returns, at most 2,000.
     */
    uint64_t messages;
    /**
     * Zero.
     */
    uint64_t reserved[4];
} redwarfs_summary;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * A builder. It builds an image of the directory `directory`, or of entries that the caller adds if
 * that is null. `level` is from 0 (no compression) and 1 (fast) to 9 (small). The builder must be freed
 * with `redwarfs_builder_free`. One thread at a time may use it. A callback cannot use the builder
 * that calls it (`REDWARFS_ERROR_ARGUMENT`), and must not free it.
 */
redwarfs_code redwarfs_builder_new(const char *directory,
                                   uint32_t level,
                                   redwarfs_builder **builder,
                                   redwarfs_error **error);

/**
 * Frees a builder. Null is allowed.
 */
void redwarfs_builder_free(redwarfs_builder *builder);

/**
 * Sets an option by the name that it has in `mkdwarfs`, such as `block-size-bits`. The manual of
 * `mkdwarfs` describes the options and their values; switches take `true` or `false`.
 */
redwarfs_code redwarfs_builder_set(redwarfs_builder *builder,
                                   const char *name,
                                   const char *value,
                                   redwarfs_error **error);

/**
 * Adds a regular file. The bytes are copied. `attributes` may be null: permissions 0644, owner root,
 * time 0. Directories above it are added as needed.
 */
redwarfs_code redwarfs_builder_add_file(redwarfs_builder *builder,
                                        const char *path,
                                        const void *data,
                                        size_t length,
                                        const redwarfs_entry_attributes *attributes,
                                        redwarfs_error **error);

/**
 * Adds a regular file with the bytes that a function gives. It stores up to `length` bytes (at least
 * 64 KiB) in `buffer` and returns their number, 0 at the end, or a negative number of `errno.h`. It is
 * called before this function returns.
 */
redwarfs_code redwarfs_builder_add_stream(redwarfs_builder *builder,
                                          const char *path,
                                          int64_t (*read)(void *context, void *buffer, size_t length),
                                          void *context,
                                          const redwarfs_entry_attributes *attributes,
                                          redwarfs_error **error);

/**
 * Adds a regular file with the content of a file on disk, which is read during the build. If
 * `attributes` is null, it gets the attributes of that file.
 */
redwarfs_code redwarfs_builder_add_disk_file(redwarfs_builder *builder,
                                             const char *path,
                                             const char *from,
                                             const redwarfs_entry_attributes *attributes,
                                             redwarfs_error **error);

/**
 * Adds a directory, or changes the attributes of one. The empty path is the root. If `attributes` is
 * null, it gets permissions 0755.
 */
redwarfs_code redwarfs_builder_add_directory(redwarfs_builder *builder,
                                             const char *path,
                                             const redwarfs_entry_attributes *attributes,
                                             redwarfs_error **error);

/**
 * Adds a symbolic link.
 */
redwarfs_code redwarfs_builder_add_symlink(redwarfs_builder *builder,
                                           const char *path,
                                           const char *target,
                                           const redwarfs_entry_attributes *attributes,
                                           redwarfs_error **error);

/**
 * Adds another name for a regular file that was added before.
 */
redwarfs_code redwarfs_builder_add_hard_link(redwarfs_builder *builder,
                                             const char *path,
                                             const char *existing,
                                             redwarfs_error **error);

/**
 * Adds a device, FIFO or socket: `type` has the bits of `S_IFMT`, and `rdev` is the number of a
 * device. It is stored only with the options `with-devices` and `with-specials`.
 */
redwarfs_code redwarfs_builder_add_special(redwarfs_builder *builder,
                                           const char *path,
                                           uint32_t type_,
                                           uint64_t rdev,
                                           const redwarfs_entry_attributes *attributes,
                                           redwarfs_error **error);

/**
 * Builds the image into a file, which gets its name when the image is complete. Flags:
 * `REDWARFS_OVERWRITE`, `REDWARFS_CONTINUE_ON_ERROR`. `progress` and `summary` may be null. Entries
 * that were added can be built once, a directory any number of times.
 */
redwarfs_code redwarfs_builder_write(redwarfs_builder *builder,
                                     const char *path,
                                     uint32_t flags,
                                     redwarfs_progress progress,
                                     void *context,
                                     redwarfs_summary *summary,
                                     redwarfs_error **error);

/**
 * Builds the image into a function of the caller. It takes `length` bytes and returns 0 or a number of
 * `errno.h`. It is called in another thread, front to back, and not after this function has returned.
 * Flags: `REDWARFS_CONTINUE_ON_ERROR`.
 */
redwarfs_code redwarfs_builder_write_stream(redwarfs_builder *builder,
                                            int (*write)(void *context,
                                                         const void *data,
                                                         size_t length),
                                            void *write_context,
                                            uint32_t flags,
                                            redwarfs_progress progress,
                                            void *context,
                                            redwarfs_summary *summary,
                                            redwarfs_error **error);

/**
 * A message of the last build, counted from 0: about what images cannot hold, and about entries that
 * were not stored unchanged. Null if there is none, or in a callback. It is valid until the builder is
 * used again.
 */
const char *redwarfs_builder_message(const redwarfs_builder *builder,
                                     size_t number);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* REDWARFS_WRITER_H */
