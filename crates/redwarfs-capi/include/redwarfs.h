/* Reads DwarFS images. Made from the source of redwarfs-capi; do not edit.
 *
 * Functions that can fail return a redwarfs_code. If the last argument is not null and the function
 * fails, it stores an error object there, which the caller frees with redwarfs_error_free. Results are
 * unchanged after a failure, unless a function says otherwise.
 *
 * Pointers. A text ends with NUL, and a pointer with a length points to as many bytes. A struct with a
 * member `size` has its own size in it. Nobody changes any of them during the call. A null pointer is an
 * error (REDWARFS_ERROR_ARGUMENT), unless a function allows it. Each object is freed once, by the
 * function that its maker names.
 *
 * Threads. All functions with a `const redwarfs_image *` can be called in several threads at once with
 * the same image. A listing or a builder is used by one thread at a time. There is no global state.
 *
 * Callbacks. They must not close or free the object that calls them.
 *
 * Forks. A child cannot use the images of its parent: it opens its own. It must not close those of its
 * parent.
 *
 * Images are untrusted input. A damaged or hostile image gives an error, and no function looks outside
 * of it. A small image can hold huge files: compare sizes with a limit before you allocate memory.
 *
 * Versions. Later versions of the library keep functions, the meaning of codes and flags, and the layout
 * of structs, or have another soname. They may add codes and flags, and members at the end of structs
 * with a member `size`, or in place of `reserved`. A caller may have a struct with a member `size` of an
 * earlier version, or of a later one with zeros in what the library does not know.
 */

#ifndef REDWARFS_H
#define REDWARFS_H

#include <stddef.h>
#include <stdint.h>

/**
 * Check the consistency of all metadata at opening.
 */
#define REDWARFS_CHECK 1

/**
 * Do not compare checksums of blocks. Damage then shows as wrong contents.
 */
#define REDWARFS_NO_VERIFY 2

/**
 * Do not decompress blocks ahead in other threads.
 */
#define REDWARFS_NO_READAHEAD 4

/**
 * `offset` says where the image begins. Without this flag the library searches for it.
 */
#define REDWARFS_OFFSET 8

/**
 * The last component of the path is not followed if it is a symbolic link.
 */
#define REDWARFS_NO_FOLLOW 1

/**
 * Also compare the SHA-512/256 of each section, and decompress all blocks.
 */
#define REDWARFS_DEEP 1

/**
 * The result of a function. Later versions may add codes.
 */
enum redwarfs_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Success.
     */
    REDWARFS_OK = 0,
    /**
     * The system, a medium or a callback failed; `redwarfs_error_errno` says how.
     */
    REDWARFS_ERROR_IO = 1,
    /**
     * The input holds no image.
     */
    REDWARFS_ERROR_NOT_AN_IMAGE = 2,
    /**
     * The image contradicts itself or its checksums.
     */
    REDWARFS_ERROR_CORRUPT = 3,
    /**
     * The image needs a version, feature or codec that this library does not have.
     */
    REDWARFS_ERROR_UNSUPPORTED = 4,
    /**
     * More is asked for than a limit allows.
     */
    REDWARFS_ERROR_LIMIT = 5,
    /**
     * The image has no such entry.
     */
    REDWARFS_ERROR_NOT_FOUND = 6,
    /**
     * The function needs a directory.
     */
    REDWARFS_ERROR_NOT_A_DIRECTORY = 7,
    /**
     * The function does not work with a directory.
     */
    REDWARFS_ERROR_IS_A_DIRECTORY = 8,
    /**
     * The entry has another wrong type.
     */
    REDWARFS_ERROR_WRONG_TYPE = 9,
    /**
     * A path leads through too many symbolic links.
     */
    REDWARFS_ERROR_LINKS = 10,
    /**
     * An option or its value is invalid.
     */
    REDWARFS_ERROR_OPTION = 11,
    /**
     * An entry of the input cannot be stored unchanged, or the build failed for another reason.
     */
    REDWARFS_ERROR_BUILD = 12,
    /**
     * A callback ended the build.
     */
    REDWARFS_ERROR_INTERRUPTED = 13,
    /**
     * An argument is wrong: a null pointer, an unknown flag, a struct that is too small.
     */
    REDWARFS_ERROR_ARGUMENT = 14,
    /**
     * The buffer is too small for the result.
     */
    REDWARFS_ERROR_RANGE = 15,
    /**
     * A bug of the library. The object that the function was called with can only be freed.
     */
    REDWARFS_ERROR_INTERNAL = 16,
    /**
     * The image does not prove what the options ask for: it is not signed by the key, for example.
     */
    REDWARFS_ERROR_UNVERIFIED = 17,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum redwarfs_code redwarfs_code;
#else
typedef int32_t redwarfs_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * A directory that is being listed.
 */
typedef struct redwarfs_directory redwarfs_directory;

/**
 * What went wrong: a code, a number of `errno.h`, and a message.
 */
typedef struct redwarfs_error redwarfs_error;

/**
 * An open image.
 */
typedef struct redwarfs_image redwarfs_image;

/**
 * How to open an image. Set `size`, and all other members to zero.
 */
typedef struct {
    /**
     * `sizeof(redwarfs_open_options)`.
     */
    size_t size;
    /**
     * `REDWARFS_CHECK`, `REDWARFS_NO_VERIFY`, `REDWARFS_NO_READAHEAD`, `REDWARFS_OFFSET`.
     */
    uint32_t flags;
    /**
     * Threads that decompress ahead; 0 is the default, 2.
     */
    uint32_t threads;
    /**
     * Bytes of decompressed blocks that are kept; 0 is the default, 512 MiB.
     */
    uint64_t cache_size;
    /**
     * With `REDWARFS_OFFSET`: the first byte of the image in its file.
     */
    uint64_t offset;
    /**
     * Bytes of the image if it ends before the end of its file; 0 if not.
     */
    uint64_t image_size;
    /**
     * What the image must prove, or null: `signed:KEY` with a public key of minisign or SSH or a file that has
     * such keys, `digests`, or `checksums`. What differs is refused, also with `REDWARFS_NO_VERIFY`.
     */
    const char *verification;
    /**
     * Null.
     */
    const void *reserved;
} redwarfs_open_options;

/**
 * Functions that read an image from a medium of the caller.
 */
typedef struct {
    /**
     * `sizeof(redwarfs_io)`.
     */
    size_t size;
    /**
     * Is passed to the functions.
     */
    void *context;
    /**
     * Number of bytes of the medium.
     */
    uint64_t length;
    /**
     * Fills `buffer` with the `length` bytes at `offset`, and returns 0 or a number of `errno.h`. The
     * library never asks for bytes beyond the end. Several threads may call this function at once.
     */
    int (*read_at)(void *context, uint64_t offset, void *buffer, size_t length);
    /**
     * Is called once, when nothing reads the medium any longer. May be null.
     */
    void (*release)(void *context);
} redwarfs_io;

/**
 * Numbers about an image.
 */
typedef struct {
    /**
     * Version of the format.
     */
    uint32_t version_major;
    /**
     * As `version_major`.
     */
    uint32_t version_minor;
    /**
     * Bytes before the image in its file.
     */
    uint64_t offset;
    /**
     * Bytes of the image.
     */
    uint64_t image_size;
    /**
     * Bytes of all regular files and targets of symbolic links.
     */
    uint64_t original_size;
    /**
     * Largest number of bytes of a block, uncompressed.
     */
    uint64_t block_size;
    /**
     * Number of blocks.
     */
    uint64_t blocks;
    /**
     * Number of inodes.
     */
    uint64_t inodes;
    /**
     * Number of regular files; names of one file with several hard links count once.
     */
    uint64_t files;
    /**
     * When the digests of the image were made, in seconds since 1970, if they were verified; otherwise 0. If an image is
     * older than it should be, somebody has put an older one in its place.
     */
    int64_t digests_time;
    /**
     * Zero.
     */
    uint64_t reserved[7];
} redwarfs_image_info;

/**
 * Attributes of an entry.
 */
typedef struct {
    /**
     * Bytes of a regular file or of the target of a symbolic link; number of entries of a directory.
     */
    uint64_t size;
    /**
     * Bytes of a file without its holes.
     */
    uint64_t allocated;
    /**
     * Number of a device, in the encoding of the system that made the image.
     */
    uint64_t rdev;
    /**
     * Seconds since 1970: last access, change of the content, change of the attributes.
     */
    int64_t atime;
    /**
     * As `atime`.
     */
    int64_t mtime;
    /**
     * As `atime`.
     */
    int64_t ctime;
    /**
     * Nanoseconds of the times.
     */
    uint32_t atime_nsec;
    /**
     * As `atime_nsec`.
     */
    uint32_t mtime_nsec;
    /**
     * As `atime_nsec`.
     */
    uint32_t ctime_nsec;
    /**
     * Number of the inode. The root has 0.
     */
    uint32_t inode;
    /**
     * Type and permissions, as `st_mode` on Linux.
     */
    uint32_t mode;
    /**
     * Number of names.
     */
    uint32_t links;
    /**
     * Owner.
     */
    uint32_t uid;
    /**
     * Group.
     */
    uint32_t gid;
    /**
     * Zero.
     */
    uint64_t reserved[4];
} redwarfs_attributes;

/**
 * An entry of a directory.
 *
 */
typedef struct {
    /**
     * The name, with NUL at its end, valid until the next call with the same listing. Null after the
     * last entry.
     */
    const char *name;
    /**
     * Bytes of the name, without NUL.
     */
    size_t name_length;
    /**
     * Number of the inode.
     */
    uint32_t inode;
    /**
     * Type, as the bits of `S_IFMT` in `st_mode`.
     */
    uint32_t type;
} redwarfs_directory_entry;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The code of an error, as the function returned it. Null gives `REDWARFS_OK`.
 */
redwarfs_code redwarfs_error_code(const redwarfs_error *error);

/**
 * The number of an error as in `errno.h`. Null gives 0.
 */
int32_t redwarfs_error_errno(const redwarfs_error *error);

/**
 * The message of an error: one line, without a full stop. It is valid until the error is freed. Null
 * gives an empty text.
 */
const char *redwarfs_error_message(const redwarfs_error *error);

/**
 * Frees an error. Null is allowed.
 */
void redwarfs_error_free(redwarfs_error *error);

/**
 * The version of the library, such as `0.1.0`.
 */
const char *redwarfs_version(void);

/**
 * Opens the image in a file or block device. `options` may be null. The image must be closed with
 * `redwarfs_close`.
 */
redwarfs_code redwarfs_open(const char *path,
                            const redwarfs_open_options *options,
                            redwarfs_image **image,
                            redwarfs_error **error);

/**
 * Opens the image in an open file. The descriptor is duplicated, and its position is not used. So the
 * caller can close it, but another process must not change the file.
 */
redwarfs_code redwarfs_open_fd(int descriptor,
                               const redwarfs_open_options *options,
                               redwarfs_image **image,
                               redwarfs_error **error);

/**
 * Opens an image in memory. The bytes are copied.
 */
redwarfs_code redwarfs_open_memory(const void *data,
                                   size_t length,
                                   const redwarfs_open_options *options,
                                   redwarfs_image **image,
                                   redwarfs_error **error);

/**
 * Opens an image that functions of the caller read. If this fails with another code than
 * `REDWARFS_ERROR_ARGUMENT`, and when the image is closed and not used any longer, `io->release` is
 * called.
 */
redwarfs_code redwarfs_open_io(const redwarfs_io *io,
                               const redwarfs_open_options *options,
                               redwarfs_image **image,
                               redwarfs_error **error);

/**
 * Closes an image. Null is allowed. Listings of the image can still be used. No other thread may be in
 * a function with this image.
 */
void redwarfs_close(redwarfs_image *image);

/**
 * Numbers about an image.
 */
redwarfs_code redwarfs_info(const redwarfs_image *image,
                            redwarfs_image_info *info,
                            redwarfs_error **error);

/**
 * Finds an entry by its path from the root. `/` and the empty path are the root. Symbolic links are
 * followed inside the image, the last one unless `flags` has `REDWARFS_NO_FOLLOW`.
 */
redwarfs_code redwarfs_lookup(const redwarfs_image *image,
                              const char *path,
                              uint32_t flags,
                              uint32_t *inode,
                              redwarfs_error **error);

/**
 * Finds a name in a directory. Links are not followed, and `.` and `..` are no names.
 */
redwarfs_code redwarfs_lookup_at(const redwarfs_image *image,
                                 uint32_t directory,
                                 const char *name,
                                 uint32_t *inode,
                                 redwarfs_error **error);

/**
 * Attributes of an inode.
 */
redwarfs_code redwarfs_stat(const redwarfs_image *image,
                            uint32_t inode,
                            redwarfs_attributes *attributes,
                            redwarfs_error **error);

/**
 * Reads from a regular file. `done` gets the number of bytes, which is less than `length` only at the
 * end of the file. After a failure, the contents of `buffer` are unspecified.
 */
redwarfs_code redwarfs_read(const redwarfs_image *image,
                            uint32_t inode,
                            uint64_t offset,
                            void *buffer,
                            size_t length,
                            size_t *done,
                            redwarfs_error **error);

/**
 * The target of a symbolic link, as a text with NUL. `length` gets the number of bytes of the target,
 * without NUL, also if the buffer is too small (`REDWARFS_ERROR_RANGE`).
 */
redwarfs_code redwarfs_readlink(const redwarfs_image *image,
                                uint32_t inode,
                                char *buffer,
                                size_t size,
                                size_t *length,
                                redwarfs_error **error);

/**
 * The names of the extended attributes of an inode, each with NUL at its end, one after the other.
 * `length` gets the number of bytes of all names, also if the buffer is too small
 * (`REDWARFS_ERROR_RANGE`).
 */
redwarfs_code redwarfs_listxattr(const redwarfs_image *image,
                                 uint32_t inode,
                                 char *buffer,
                                 size_t size,
                                 size_t *length,
                                 redwarfs_error **error);

/**
 * The value of an extended attribute of an inode. `length` gets its number of bytes, also if the buffer
 * is too small (`REDWARFS_ERROR_RANGE`). An attribute that is not there gives
 * `REDWARFS_ERROR_NOT_FOUND`.
 */
redwarfs_code redwarfs_getxattr(const redwarfs_image *image,
                                uint32_t inode,
                                const char *name,
                                void *buffer,
                                size_t size,
                                size_t *length,
                                redwarfs_error **error);

/**
 * Checks the checksums of an image. `findings` gets the number of damages; 0 means that none was
 * found. `found` is called for each damage with a message, and may be null. Flags: `REDWARFS_DEEP`.
 */
redwarfs_code redwarfs_verify(const redwarfs_image *image,
                              uint32_t flags,
                              void (*found)(void *context, const char *message),
                              void *context,
                              uint64_t *findings,
                              redwarfs_error **error);

/**
 * Begins to list a directory, in the order of the names, without `.` and `..`. The listing must be
 * closed with `redwarfs_closedir`. It can outlive the image. One thread at a time may use it.
 */
redwarfs_code redwarfs_opendir(const redwarfs_image *image,
                               uint32_t inode,
                               redwarfs_directory **directory,
                               redwarfs_error **error);

/**
 * The next entry of a listing. After the last one, `entry->name` is null. After an error, the next call
 * returns the entry behind the damaged one.
 */
redwarfs_code redwarfs_readdir(redwarfs_directory *directory,
                               redwarfs_directory_entry *entry,
                               redwarfs_error **error);

/**
 * Ends a listing. Null is allowed.
 */
void redwarfs_closedir(redwarfs_directory *directory);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* REDWARFS_H */
