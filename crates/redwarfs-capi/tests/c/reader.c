/* Reads the test vectors, and checks what redwarfs.h promises.
 *
 *     reader DIRECTORY-OF-THE-VECTORS [NAME-OF-AN-IMAGE...]
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "redwarfs.h"
#include "sha256.h"

static const char *vectors;

static void encode(const char *bytes, size_t length, char *text)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        if (byte < 0x21 || byte > 0x7e || byte == '%')
            text += sprintf(text, "%%%02X", byte);
        else
            *text++ = (char)byte;
    }
    *text = 0;
}

static void decode(const char *text, char *bytes)
{
    while (*text) {
        unsigned value;
        if (*text == '%') {
            CHECK(sscanf(text + 1, "%2x", &value) == 1);
            *bytes++ = (char)value;
            text += 3;
        } else {
            *bytes++ = *text++;
        }
    }
    *bytes = 0;
}

/* The digest of a file, or of its last 4096 bytes, read in pieces of odd sizes. */
static void digest(const redwarfs_image *image, uint32_t inode, uint64_t offset, char *hex)
{
    static char buffer[100003];
    sha256 state;
    size_t done;
    sha256_start(&state);
    do {
        OK(redwarfs_read(image, inode, offset, buffer, sizeof buffer, &done, &error));
        sha256_add(&state, buffer, done);
        offset += done;
    } while (done == sizeof buffer);
    sha256_hex(&state, hex);
}

/* The line of an entry, as the vectors have it. */
static void line(const redwarfs_image *image, const char *path, int no_time, int last, char *text)
{
    static char bytes[65536], value[200000], name[200000];
    redwarfs_attributes found;
    uint32_t inode;
    size_t length;
    char letter = '?';
    decode(path, bytes);
    OK(redwarfs_lookup(image, bytes, REDWARFS_NO_FOLLOW, &inode, &error));
    OK(redwarfs_stat(image, inode, &found, &error));
    CHECK(found.inode == inode);
    strcpy(value, "-");
    switch (found.mode & S_IFMT) {
    case S_IFDIR: letter = 'd'; break;
    case S_IFIFO: letter = 'p'; break;
    case S_IFSOCK: letter = 's'; break;
    case S_IFREG:
        letter = 'f';
        strcpy(value, last ? "last4096:" : "sha256:");
        digest(image, inode, last ? found.size - 4096 : 0, value + strlen(value));
        break;
    case S_IFLNK:
        letter = 'l';
        FAILS(redwarfs_readlink(image, inode, bytes, found.size, &length, &error),
              REDWARFS_ERROR_RANGE, "bytes");
        CHECK(length == found.size);
        OK(redwarfs_readlink(image, inode, bytes, found.size + 1, &length, &error));
        CHECK(length == found.size && strlen(bytes) == length);
        strcpy(value, "target:");
        encode(bytes, length, value + strlen(value));
        break;
    case S_IFCHR:
    case S_IFBLK:
        letter = S_ISCHR(found.mode) ? 'c' : 'b';
        sprintf(value, "device:%llu,%llu",
                (unsigned long long)((found.rdev >> 32 & 0xfffff000) | (found.rdev >> 8 & 0xfff)),
                (unsigned long long)((found.rdev >> 12 & 0xffffff00) | (found.rdev & 0xff)));
        break;
    }
    decode(path, bytes);
    encode(bytes, strlen(bytes), name);
    char time[40] = "-";
    if (!no_time) {
        if (found.mtime > 0)
            sprintf(time, "%lld%09u", (long long)found.mtime, found.mtime_nsec);
        else
            sprintf(time, "%u", found.mtime_nsec);
    }
    sprintf(text, "%s\t%c\t%o\t%u\t%u\t%llu\t%u\t%u\t%s\t%s\n", name, letter, found.mode & 07777,
            found.uid, found.gid, (unsigned long long)found.size, found.links, inode, time, value);
}

/* Number of entries below a directory, itself included. */
static size_t count(const redwarfs_image *image, uint32_t inode)
{
    redwarfs_directory *directory;
    redwarfs_directory_entry entry;
    redwarfs_attributes found;
    char before[300] = "";
    size_t total = 1, here = 0;
    OK(redwarfs_opendir(image, inode, &directory, &error));
    for (;;) {
        uint32_t again;
        OK(redwarfs_readdir(directory, &entry, &error));
        if (entry.name == NULL)
            break;
        CHECK(strlen(entry.name) == entry.name_length && strcmp(before, entry.name) < 0);
        strcpy(before, entry.name);
        OK(redwarfs_lookup_at(image, inode, entry.name, &again, &error));
        CHECK(again == entry.inode);
        OK(redwarfs_stat(image, entry.inode, &found, &error));
        CHECK((found.mode & S_IFMT) == entry.type);
        total += S_ISDIR(entry.type) ? count(image, entry.inode) : 1;
        here++;
    }
    OK(redwarfs_readdir(directory, &entry, &error));
    CHECK(entry.name == NULL);
    redwarfs_closedir(directory);
    OK(redwarfs_stat(image, inode, &found, &error));
    CHECK(found.size == here);
    return total;
}

static void note(void *context, const char *message)
{
    CHECK(strstr(message, "section") != NULL);
    ++*(int *)context;
}

static void check_image(const char *name, const redwarfs_image *image)
{
    static char wanted[500000], shown[500000];
    uint64_t findings = 1;
    size_t lines = 0;
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.tsv", vectors, name);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    while (fgets(wanted, sizeof wanted, file)) {
        static char copy[500000];
        char *field = copy;
        strcpy(copy, wanted);
        copy[strcspn(copy, "\t")] = 0;
        int no_time = strstr(wanted, "\t-\tsha256") != NULL;
        line(image, field, no_time, strstr(wanted, "\tlast4096:") != NULL, shown);
        if (strcmp(wanted, shown) != 0) {
            fprintf(stderr, "%s:\nwanted %sfound  %s", name, wanted, shown);
            exit(1);
        }
        lines++;
    }
    fclose(file);
    CHECK(count(image, 0) == lines);
    OK(redwarfs_verify(image, REDWARFS_DEEP, NULL, NULL, &findings, &error));
    CHECK(findings == 0);
}

/* A medium that counts its uses. */
typedef struct {
    int descriptor, reads, released, fails;
    pthread_mutex_t lock;
} medium;

static int medium_read(void *context, uint64_t offset, void *buffer, size_t length)
{
    medium *m = context;
    pthread_mutex_lock(&m->lock);
    m->reads++;
    pthread_mutex_unlock(&m->lock);
    if (m->fails)
        return m->fails;
    return pread(m->descriptor, buffer, length, (off_t)offset) == (ssize_t)length ? 0 : EIO;
}

static void medium_release(void *context)
{
    ((medium *)context)->released++;
}

static void *many_reads(void *image)
{
    char buffer[1000];
    uint32_t inode;
    size_t done;
    for (int i = 0; i < 300; i++) {
        OK(redwarfs_lookup(image, "format.sh", 0, &inode, &error));
        OK(redwarfs_read(image, inode, (uint64_t)i % 90, buffer, sizeof buffer, &done, &error));
        CHECK(done == 94 - (size_t)i % 90);
    }
    return NULL;
}

static void check_interface(void)
{
    char path[4096], buffer[100];
    redwarfs_image *image, *other;
    redwarfs_image_info info;
    redwarfs_attributes found;
    redwarfs_directory *directory;
    redwarfs_directory_entry entry;
    redwarfs_open_options options;
    uint32_t inode;
    size_t done;
    uint64_t findings;
    struct stat file;

    snprintf(path, sizeof path, "%s/../fixtures/compat/compat-v0.9.10.dwarfs", vectors);
    CHECK(stat(path, &file) == 0);
    CHECK(strchr(redwarfs_version(), '.') != NULL);

    /* All ways to open it. */
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.flags = REDWARFS_CHECK | REDWARFS_NO_READAHEAD | REDWARFS_OFFSET;
    options.cache_size = 1 << 20;
    options.threads = 1;
    options.image_size = (uint64_t)file.st_size;
    OK(redwarfs_open(path, &options, &image, &error));
    OK(redwarfs_info(image, &info, &error));
    CHECK(info.version_major == 2 && info.version_minor == 5 && info.offset == 0);
    CHECK(info.image_size == (uint64_t)file.st_size && info.blocks > 0 && info.files > 0);
    int descriptor = open(path, O_RDONLY);
    CHECK(descriptor >= 0);
    OK(redwarfs_open_fd(descriptor, NULL, &other, &error));
    many_reads(other);
    redwarfs_close(other);
    char *memory = malloc((size_t)file.st_size);
    CHECK(memory && pread(descriptor, memory, (size_t)file.st_size, 0) == file.st_size);
    OK(redwarfs_open_memory(memory, (size_t)file.st_size, NULL, &other, &error));
    free(memory);
    many_reads(other);
    redwarfs_close(other);

    medium m = {descriptor, 0, 0, 0, PTHREAD_MUTEX_INITIALIZER};
    redwarfs_io io = {sizeof io, &m, (uint64_t)file.st_size, medium_read, medium_release};
    OK(redwarfs_open_io(&io, NULL, &other, &error));
    CHECK(m.reads > 0 && m.released == 0);
    many_reads(other);
    OK(redwarfs_opendir(other, 0, &directory, &error));
    redwarfs_close(other);
    /* The listing keeps the image. */
    CHECK(m.released == 0);
    OK(redwarfs_readdir(directory, &entry, &error));
    CHECK(entry.name != NULL);
    redwarfs_closedir(directory);
    CHECK(m.released == 1);
    m.fails = 110;
    redwarfs_error *failure = NULL;
    CHECK(redwarfs_open_io(&io, NULL, &other, &failure) == REDWARFS_ERROR_IO);
    CHECK(redwarfs_error_errno(failure) == 110 && m.released == 2);
    redwarfs_error_free(failure);
    close(descriptor);

    /* Threads. */
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, many_reads, image) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);

    /* Failures. */
    OK(redwarfs_lookup(image, "/", 0, &inode, &error));
    CHECK(inode == 0);
    FAILS(redwarfs_lookup(image, "missing", 0, &inode, &error), REDWARFS_ERROR_NOT_FOUND, "missing");
    FAILS(redwarfs_lookup(image, "format.sh/x", 0, &inode, &error), REDWARFS_ERROR_NOT_A_DIRECTORY, "x");
    FAILS(redwarfs_lookup_at(image, 0, "..", &inode, &error), REDWARFS_ERROR_NOT_FOUND, "..");
    FAILS(redwarfs_read(image, 0, 0, buffer, 10, &done, &error), REDWARFS_ERROR_IS_A_DIRECTORY, "directory");
    FAILS(redwarfs_readlink(image, 0, buffer, 10, &done, &error), REDWARFS_ERROR_WRONG_TYPE, "link");
    FAILS(redwarfs_stat(image, 4000000, &found, &error), REDWARFS_ERROR_CORRUPT, "inode");
    OK(redwarfs_lookup(image, "format.sh", 0, &inode, &error));
    FAILS(redwarfs_opendir(image, inode, &directory, &error), REDWARFS_ERROR_NOT_A_DIRECTORY, "directory");
    FAILS(redwarfs_lookup_at(image, inode, "x", &inode, &error), REDWARFS_ERROR_NOT_A_DIRECTORY, "directory");
    OK(redwarfs_read(image, inode, 94, buffer, 10, &done, &error));
    CHECK(done == 0);
    OK(redwarfs_read(image, inode, UINT64_MAX, buffer, 10, &done, &error));
    CHECK(done == 0);
    OK(redwarfs_read(image, inode, 0, NULL, 0, &done, &error));
    CHECK(done == 0);

    /* Wrong arguments, and no error object. */
    const redwarfs_code argument = REDWARFS_ERROR_ARGUMENT;
    FAILS(redwarfs_open(NULL, NULL, &other, &error), argument, "path");
    FAILS(redwarfs_open(path, NULL, NULL, &error), argument, "image");
    FAILS(redwarfs_open_fd(-1, NULL, &other, &error), argument, "descriptor");
    FAILS(redwarfs_open_fd(987654, NULL, &other, &error), REDWARFS_ERROR_IO, "descriptor");
    FAILS(redwarfs_open_io(NULL, NULL, &other, &error), argument, "io");
    FAILS(redwarfs_open_memory(NULL, 5, NULL, &other, &error), argument, "data");
    FAILS(redwarfs_open_memory(NULL, 0, NULL, &other, &error), REDWARFS_ERROR_NOT_AN_IMAGE, "");
    FAILS(redwarfs_info(NULL, &info, &error), argument, "image");
    FAILS(redwarfs_info(image, NULL, &error), argument, "info");
    FAILS(redwarfs_lookup(image, NULL, 0, &inode, &error), argument, "path");
    FAILS(redwarfs_lookup(image, "/", 6, &inode, &error), argument, "flags");
    FAILS(redwarfs_lookup(image, "/", 0, NULL, &error), argument, "inode");
    FAILS(redwarfs_read(image, inode, 0, NULL, 10, &done, &error), argument, "buffer");
    FAILS(redwarfs_read(image, inode, 0, buffer, 10, NULL, &error), argument, "done");
    FAILS(redwarfs_opendir(image, 0, NULL, &error), argument, "directory");
    FAILS(redwarfs_readdir(NULL, &entry, &error), argument, "directory");
    FAILS(redwarfs_verify(image, 2, NULL, NULL, &findings, &error), argument, "flags");
    options.flags = 64;
    FAILS(redwarfs_open(path, &options, &other, &error), argument, "flags");
    options.flags = 0;
    options.size = 8;
    FAILS(redwarfs_open(path, &options, &other, &error), argument, "size");
    struct {
        redwarfs_open_options known;
        uint64_t more;
    } later = {{sizeof later, 0, 0, 0, 0, 0, NULL, NULL}, 0};
    OK(redwarfs_open(path, &later.known, &other, &error));
    redwarfs_close(other);
    later.more = 1;
    FAILS(redwarfs_open(path, &later.known, &other, &error), argument, "unknown");
    io.size = 0;
    FAILS(redwarfs_open_io(&io, NULL, &other, &error), argument, "size");
    io.size = sizeof io;
    io.read_at = NULL;
    FAILS(redwarfs_open_io(&io, NULL, &other, &error), argument, "read_at");
    CHECK(m.released == 2);
    CHECK(redwarfs_open("/missing", NULL, &other, NULL) == REDWARFS_ERROR_IO);
    FAILS(redwarfs_open("/missing", NULL, &other, &error), REDWARFS_ERROR_IO, "/missing");
    redwarfs_close(NULL);
    redwarfs_closedir(NULL);
    redwarfs_error_free(NULL);
    CHECK(redwarfs_error_code(NULL) == REDWARFS_OK && *redwarfs_error_message(NULL) == 0);
    redwarfs_close(image);
}

static int unreadable(void *context, uint64_t offset, void *buffer, size_t length)
{
    (void)context, (void)offset, (void)buffer, (void)length;
    return EIO;
}

static void released(void *context)
{
    ++*(int *)context;
}

/* What an image must prove. */
static void check_signed(void)
{
    char path[4096], key[4200];
    redwarfs_image *image;
    redwarfs_image_info info;
    redwarfs_open_options options;
    uint32_t inode;
    size_t done;
    char bytes[16], whole[4096];
    int releases = 0;
    redwarfs_io io = {sizeof io, &releases, 100, unreadable, released};

    snprintf(path, sizeof path, "%s/signed.bin", vectors);
    snprintf(key, sizeof key, "signed:%s/../fixtures/keys/ssh.pub", vectors);
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.verification = key;
    OK(redwarfs_open(path, &options, &image, &error));
    OK(redwarfs_info(image, &info, &error));
    CHECK(info.digests_time == 1700000000);
    OK(redwarfs_lookup(image, "only", 0, &inode, &error));
    OK(redwarfs_read(image, inode, 0, bytes, sizeof bytes, &done, &error));
    redwarfs_close(image);
    options.verification = "digests";
    OK(redwarfs_open(path, &options, &image, &error));
    redwarfs_close(image);
    options.verification = "checksums";
    OK(redwarfs_open(path, &options, &image, &error));
    OK(redwarfs_info(image, &info, &error));
    CHECK(info.digests_time == 0);
    redwarfs_close(image);

    snprintf(key, sizeof key, "signed:%s/../fixtures/keys/minisign.pub", vectors);
    options.verification = key;
    FAILS(redwarfs_open(path, &options, &image, &error), REDWARFS_ERROR_UNVERIFIED, "signature");
    options.verification = "believed";
    FAILS(redwarfs_open(path, &options, &image, &error), REDWARFS_ERROR_OPTION, "believed");
    FAILS(redwarfs_open_io(&io, &options, &image, &error), REDWARFS_ERROR_OPTION, "believed");
    CHECK(releases == 1);
    options.verification = "\xff";
    FAILS(redwarfs_open_io(&io, &options, &image, &error), REDWARFS_ERROR_ARGUMENT, "UTF-8");
    CHECK(releases == 1);
    options.verification = "signed:/none/of/them";
    FAILS(redwarfs_open(path, &options, &image, &error), REDWARFS_ERROR_IO, "/none/of/them");
    /* A byte of the block, with the checksums switched off. */
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    done = fread(whole, 1, sizeof whole, file);
    fclose(file);
    CHECK(done > 1000 && done < sizeof whole);
    whole[100] ^= 1;
    snprintf(key, sizeof key, "signed:%s/../fixtures/keys/ssh.pub", vectors);
    options.verification = key;
    options.flags = REDWARFS_NO_VERIFY;
    OK(redwarfs_open_memory(whole, done, &options, &image, &error));
    OK(redwarfs_lookup(image, "only", 0, &inode, &error));
    FAILS(redwarfs_read(image, inode, 0, bytes, sizeof bytes, &done, &error), REDWARFS_ERROR_CORRUPT, "");
    redwarfs_close(image);
}

static void check_failure(const char *path, const char *expect)
{
    redwarfs_image *image;
    if (strcmp(expect, "corrupt") == 0) {
        FAILS(redwarfs_open(path, NULL, &image, &error), REDWARFS_ERROR_CORRUPT, "");
    } else if (strcmp(expect, "not-an-image") == 0) {
        FAILS(redwarfs_open(path, NULL, &image, &error), REDWARFS_ERROR_NOT_AN_IMAGE, path);
    } else {
        uint64_t findings = 0;
        int notes = 0;
        uint32_t inode;
        char buffer[10];
        size_t done;
        CHECK(strcmp(expect, "damaged") == 0);
        OK(redwarfs_open(path, NULL, &image, &error));
        OK(redwarfs_verify(image, 0, note, &notes, &findings, &error));
        CHECK(findings == 1 && notes == 1);
        OK(redwarfs_lookup(image, "format.sh", 0, &inode, &error));
        FAILS(redwarfs_read(image, inode, 0, buffer, 10, &done, &error), REDWARFS_ERROR_CORRUPT, "section");
        redwarfs_close(image);
    }
}

static int chosen(int argc, char **argv, const char *name)
{
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return 1;
    return argc <= 2;
}

int main(int argc, char **argv)
{
    char path[4096], text[1000];
    int images = 0;
    CHECK(argc >= 2);
    vectors = argv[1];
    check_interface();
    check_signed();
    snprintf(path, sizeof path, "%s/images.tsv", vectors);
    FILE *index = fopen(path, "r");
    CHECK(index != NULL);
    while (fgets(text, sizeof text, index)) {
        char name[200], file[200], expect[200];
        redwarfs_image *image;
        CHECK(sscanf(text, "%199[^\t]\t%199[^\t]\t%199[^\t]", name, file, expect) == 3);
        if (!chosen(argc, argv, name))
            continue;
        snprintf(path, sizeof path, "%s/%s", vectors, file);
        if (strcmp(expect, "ok") == 0) {
            OK(redwarfs_open(path, NULL, &image, &error));
            check_image(name, image);
            redwarfs_close(image);
        } else {
            check_failure(path, expect);
        }
        images++;
    }
    fclose(index);
    printf("%d images\n", images);
    return 0;
}
