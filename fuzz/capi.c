/* What the target `capi` does with an input. */
#include "../crates/redwarfs-capi/tests/c/use.h"

void redwarfs_fuzz_use(const uint8_t *data, size_t length)
{
    use_image(data, length, 1);
}
