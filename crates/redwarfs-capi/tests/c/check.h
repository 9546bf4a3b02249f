/* What the tests in C share. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);     \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

/* The call succeeds; otherwise its message is shown. */
#define OK(call)                                                                \
    do {                                                                        \
        redwarfs_error *error = NULL;                                           \
        redwarfs_code code = (call);                                            \
        if (code != REDWARFS_OK || error != NULL) {                             \
            fprintf(stderr, "%s:%d: %s: code %d: %s\n", __FILE__, __LINE__,     \
                    #call, (int)code, redwarfs_error_message(error));           \
            exit(1);                                                            \
        }                                                                       \
    } while (0)

/* The call fails with a code, and its message contains some words. */
#define FAILS(call, wanted, words)                                              \
    do {                                                                        \
        redwarfs_error *error = NULL;                                           \
        redwarfs_code code = (call);                                            \
        const char *message = redwarfs_error_message(error);                    \
        if (code != (wanted) || redwarfs_error_code(error) != code ||           \
            strstr(message, words) == NULL || strchr(message, '\n') != NULL ||  \
            redwarfs_error_errno(error) <= 0) {                                 \
            fprintf(stderr, "%s:%d: %s: code %d, errno %d: %s\n", __FILE__,     \
                    __LINE__, #call, (int)code, redwarfs_error_errno(error),    \
                    message);                                                   \
            exit(1);                                                            \
        }                                                                       \
        redwarfs_error_free(error);                                             \
    } while (0)

#endif
