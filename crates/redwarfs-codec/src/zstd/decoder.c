/* Decoding of zstd frames to one place, block by block.
 *
 * A match far back is a cache miss. The library has two loops that carry out the sequences of a
 * block; one of them asks for the source of a match eight sequences ahead. It takes that one if
 * enough matches lie 8 MiB back or more and what they can refer to is larger than 16 MiB, so never
 * in a block of 16 MiB. Here is a third one, which asks 32 sequences ahead, and is taken wherever
 * enough matches are far for the caches of one core. It is made of the parts that the loops of the
 * library are made of, which do all checks. They are not to be had from outside, so the decoder is
 * compiled here a second time, in one piece with what uses them. All it defines is local to this
 * file or has a name of its own, so that both can be linked into one program.
 *
 * Where the sources of the library are not at hand, everything is left to the library.
 */

#define ZSTD_STATIC_LINKING_ONLY

#ifdef REDWARFS_ZSTD_SOURCES

#define ZSTDLIB_VISIBLE static
#define ZSTDERRORLIB_VISIBLE static
#define XXH_PRIVATE_API
/* The loops in assembler are another file. */
#define ZSTD_DISABLE_ASM

/* What the parts of the library share among themselves is not declared with either of those. */
#define ERR_getErrorString redwarfs_ERR_getErrorString
#define FSE_buildDTable_wksp redwarfs_FSE_buildDTable_wksp
#define FSE_decompress_wksp_bmi2 redwarfs_FSE_decompress_wksp_bmi2
#define FSE_getErrorName redwarfs_FSE_getErrorName
#define FSE_readNCount redwarfs_FSE_readNCount
#define FSE_readNCount_bmi2 redwarfs_FSE_readNCount_bmi2
#define FSE_versionNumber redwarfs_FSE_versionNumber
#define HUF_decompress1X1_DCtx_wksp redwarfs_HUF_decompress1X1_DCtx_wksp
#define HUF_decompress1X2_DCtx_wksp redwarfs_HUF_decompress1X2_DCtx_wksp
#define HUF_decompress1X_DCtx_wksp redwarfs_HUF_decompress1X_DCtx_wksp
#define HUF_decompress1X_usingDTable redwarfs_HUF_decompress1X_usingDTable
#define HUF_decompress4X_hufOnly_wksp redwarfs_HUF_decompress4X_hufOnly_wksp
#define HUF_decompress4X_usingDTable redwarfs_HUF_decompress4X_usingDTable
#define HUF_getErrorName redwarfs_HUF_getErrorName
#define HUF_readDTableX1_wksp redwarfs_HUF_readDTableX1_wksp
#define HUF_readDTableX2_wksp redwarfs_HUF_readDTableX2_wksp
#define HUF_readStats redwarfs_HUF_readStats
#define HUF_readStats_wksp redwarfs_HUF_readStats_wksp
#define HUF_selectDecoder redwarfs_HUF_selectDecoder
#define ZSTD_DDict_dictContent redwarfs_ZSTD_DDict_dictContent
#define ZSTD_DDict_dictSize redwarfs_ZSTD_DDict_dictSize
#define ZSTD_buildFSETable redwarfs_ZSTD_buildFSETable
#define ZSTD_checkContinuity redwarfs_ZSTD_checkContinuity
#define ZSTD_copyDDictParameters redwarfs_ZSTD_copyDDictParameters
#define ZSTD_decodeLiteralsBlock_wrapper redwarfs_ZSTD_decodeLiteralsBlock_wrapper
#define ZSTD_decodeSeqHeaders redwarfs_ZSTD_decodeSeqHeaders
#define ZSTD_decompressBlock_deprecated redwarfs_ZSTD_decompressBlock_deprecated
#define ZSTD_getcBlockSize redwarfs_ZSTD_getcBlockSize
#define ZSTD_loadDEntropy redwarfs_ZSTD_loadDEntropy
#define FSE_isError redwarfs_FSE_isError
#define HUF_isError redwarfs_HUF_isError

#include "common/error_private.c"
#include "common/entropy_common.c"
#include "common/fse_decompress.c"
#include "decompress/huf_decompress.c"
#include "decompress/zstd_ddict.c"
/* Frames call the function of this file for their blocks, which calls that of the library. */
#define ZSTD_decompressBlock_internal redwarfs_zstd_block
#include "decompress/zstd_decompress.c"
#undef ZSTD_decompressBlock_internal
#define ZSTD_decompressBlock_internal redwarfs_ZSTD_decompressBlock_internal
#include "decompress/zstd_decompress_block.c"
#include "common/zstd_common.c"

/* Offsets of so many bits or more are far: from 256 KiB on, what the caches of one core hold of it
 * besides what is being written. */
#define FAR_BITS 18
/* The part of all matches, in 256ths, from which it pays to ask ahead. Measured: words at random
 * take half of the time, and programs 0.8; where all is near, as in logs, asking always would take
 * 1.1 to 1.2. */
#define FAR_SHARE 24
/* How many sequences ahead, a power of two. Words at random take 0.83 of what they take with 8,
 * which is what the library does, 0.87 with 16, and no less with 64. */
#define AHEAD 32
/* Bytes from the start of a match for which a second line of the cache is asked for. What comes
 * next often follows the source of the match before: eight sequences ahead, words at random take
 * 1.2 of the time without it. */
#define NEXT_LINE 64

/* Whether enough of the matches of a block are far, by the table that its offsets are coded with. */
static int is_far(const ZSTD_DCtx* context)
{
    const ZSTD_seqSymbol* const table = context->OFTptr;
    const void* const start = table;
    U32 const log = ((const ZSTD_seqSymbol_header*)start)->tableLog;
    U32 far = 0, n;
    for (n = 1; n <= 1u << log; n++)
        far += table[n].nbAdditionalBits >= FAR_BITS;
    return far << (OffFSELog - log) >= FAR_SHARE;
}

/* Asks for what a sequence will copy that is written at `at`; returns where the next one is. */
FORCE_INLINE_TEMPLATE size_t ask(size_t at, seq_t sequence)
{
    size_t const match = at + sequence.litLength - sequence.offset;
    PREFETCH_L1((const BYTE*)match);
    PREFETCH_L1((const BYTE*)(match + NEXT_LINE));
    return at + sequence.litLength + sequence.matchLength;
}

/* Carries out all sequences of a block whose literals lie in one piece. */
FORCE_INLINE_TEMPLATE size_t carry_out_body(ZSTD_DCtx* context, BYTE* to, size_t room,
                                            const void* from, size_t size, int count)
{
    BYTE* const end = context->litBufferLocation == ZSTD_in_dst ? context->litBuffer : to + room;
    const BYTE* literals = context->litPtr;
    const BYTE* const literals_end = context->litBufferEnd;
    const BYTE* const prefix = context->prefixStart;
    const BYTE* const start = context->virtualStart;
    const BYTE* const dictionary_end = context->dictEnd;
    BYTE* out = to;
    size_t at = (size_t)to;
    seq_t ring[AHEAD];
    seqState_t state;
    int n, i;

    context->fseEntropy = 1;
    for (i = 0; i < ZSTD_REP_NUM; i++)
        state.prevOffset[i] = context->entropy.rep[i];
    RETURN_ERROR_IF(ERR_isError(BIT_initDStream(&state.DStream, from, size)), corruption_detected,
                    "");
    ZSTD_initFseState(&state.stateLL, &state.DStream, context->LLTptr);
    ZSTD_initFseState(&state.stateOffb, &state.DStream, context->OFTptr);
    ZSTD_initFseState(&state.stateML, &state.DStream, context->MLTptr);

    for (n = 0; n < MIN(count, AHEAD); n++) {
        seq_t const sequence =
            ZSTD_decodeSequence(&state, ZSTD_lo_isRegularOffset, n + 1 == count);
        ring[n] = sequence;
        at = ask(at, sequence);
    }
    for (; n < count; n++) {
        seq_t const sequence =
            ZSTD_decodeSequence(&state, ZSTD_lo_isRegularOffset, n + 1 == count);
        size_t const written = ZSTD_execSequence(out, end, ring[n % AHEAD], &literals,
                                                 literals_end, prefix, start, dictionary_end);
        if (UNLIKELY(ZSTD_isError(written)))
            return written;
        out += written;
        ring[n % AHEAD] = sequence;
        at = ask(at, sequence);
    }
    RETURN_ERROR_IF(!BIT_endOfDStream(&state.DStream), corruption_detected, "");
    for (i = n - MIN(count, AHEAD); i < n; i++) {
        size_t const written = ZSTD_execSequence(out, end, ring[i % AHEAD], &literals,
                                                 literals_end, prefix, start, dictionary_end);
        if (UNLIKELY(ZSTD_isError(written)))
            return written;
        out += written;
    }
    for (i = 0; i < ZSTD_REP_NUM; i++)
        context->entropy.rep[i] = (U32)state.prevOffset[i];

    {
        size_t const rest = (size_t)(literals_end - literals);
        RETURN_ERROR_IF(rest > (size_t)(end - out), dstSize_tooSmall, "");
        ZSTD_memmove(out, literals, rest);
        out += rest;
    }
    return (size_t)(out - to);
}

static size_t carry_out_default(ZSTD_DCtx* context, BYTE* to, size_t room, const void* from,
                                size_t size, int count)
{
    return carry_out_body(context, to, room, from, size, count);
}

#if DYNAMIC_BMI2
static BMI2_TARGET_ATTRIBUTE size_t carry_out_bmi2(ZSTD_DCtx* context, BYTE* to, size_t room,
                                                   const void* from, size_t size, int count)
{
    return carry_out_body(context, to, room, from, size, count);
}
#endif

static size_t carry_out(ZSTD_DCtx* context, BYTE* to, size_t room, const void* from, size_t size,
                        int count)
{
#if DYNAMIC_BMI2
    if (ZSTD_DCtx_get_bmi2(context))
        return carry_out_bmi2(context, to, room, from, size, count);
#endif
    return carry_out_default(context, to, room, from, size, count);
}

/* Decodes one compressed block, as the function of the library does. */
size_t redwarfs_zstd_block(ZSTD_DCtx* context, void* to, size_t room, const void* from,
                           size_t size, const streaming_operation streaming)
{
    const BYTE* in = from;
    int count;
    /* There the library tells apart long offsets, too. */
    if (MEM_32bits())
        return ZSTD_decompressBlock_internal(context, to, room, from, size, streaming);
    RETURN_ERROR_IF(size > ZSTD_blockSizeMax(context), srcSize_wrong, "");
    {
        size_t const part = ZSTD_decodeLiteralsBlock(context, in, size, to, room, streaming);
        if (ZSTD_isError(part))
            return part;
        in += part;
        size -= part;
    }
    {
        size_t const part = ZSTD_decodeSeqHeaders(context, &count, in, size);
        if (ZSTD_isError(part))
            return part;
        in += part;
        size -= part;
    }
    RETURN_ERROR_IF(room == 0 && count > 0, dstSize_tooSmall, "");
    /* So that pointers to what is a block behind do not overflow. */
    RETURN_ERROR_IF((size_t)-1 - (size_t)to < (size_t)1 << 20, dstSize_tooSmall, "");
    if (context->litBufferLocation == ZSTD_split)
        return ZSTD_decompressSequencesSplitLitBuffer(context, to, room, in, size, count,
                                                      ZSTD_lo_isRegularOffset);
    if (count > 0 && is_far(context))
        return carry_out(context, to, room, in, size, count);
    return ZSTD_decompressSequences(context, to, room, in, size, count, ZSTD_lo_isRegularOffset);
}

/* Whether matches were found to be far in the last block that had any. */
int redwarfs_zstd_was_far(const ZSTD_DCtx* context)
{
    return context->fseEntropy && is_far(context);
}

#else

#include <zstd.h>

int redwarfs_zstd_was_far(const ZSTD_DCtx* context)
{
    (void)context;
    return -1;
}

#endif

/* A context for frames, one after another, or null if there is no memory. */
ZSTD_DCtx* redwarfs_zstd_create(void)
{
    return ZSTD_createDCtx();
}

void redwarfs_zstd_free(ZSTD_DCtx* context)
{
    ZSTD_freeDCtx(context);
}

/* Bytes that a context takes. */
size_t redwarfs_zstd_size(const ZSTD_DCtx* context)
{
    return ZSTD_sizeof_DCtx(context);
}

/* Begins a frame. As all that return a size, returns an error of the library, if there is one. */
size_t redwarfs_zstd_begin(ZSTD_DCtx* context)
{
    return ZSTD_decompressBegin(context);
}

/* How many bytes of the frame the next step takes, exactly; none at its end. */
size_t redwarfs_zstd_wanted(ZSTD_DCtx* context)
{
    return ZSTD_nextSrcSizeToDecompress(context);
}

/* Takes the next `size` bytes of the frame, and writes what they hold to `to`, where what was
 * written before ends and `room` bytes can be written. Returns how many bytes were written. */
size_t redwarfs_zstd_step(ZSTD_DCtx* context, void* to, size_t room, const void* from, size_t size)
{
    return ZSTD_decompressContinue(context, to, room, from, size);
}
