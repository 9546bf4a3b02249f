/* Decoding of zstd frames to one place, block by block.
 *
 * A match far back is a cache miss. The library has two loops that carry out the sequences of a
 * block; one of them asks for the source of a match eight sequences ahead. It takes that one if
 * enough matches lie 8 MiB back or more and what they can refer to is larger than 16 MiB, so never
 * in a block of 16 MiB. Here is a third one (`sequences.h`), which asks 32 sequences ahead, and is
 * taken wherever enough matches are far for the caches of one core. It leaves to the parts that the
 * loops of the library are made of, which do all checks, what it cannot know to be in range: the end
 * of a block, and what it has found when something is wrong. So it accepts what they accept. They
 * are not to be had from outside, so the decoder is compiled here a second time, in one piece with
 * what uses them. All it defines is local to this file or has a name of its own, so that both can be
 * linked into one program.
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
 * take 0.42 to 0.44 of the time, and programs 0.72 to 0.79; where all is near, as in logs, nothing is
 * gained. */
#define FAR_SHARE 24
/* How many sequences ahead, a power of two. Words at random take 1.16 of that with 8, which is what
 * the library does, 1.05 to 1.13 with 16, and no less with 64. */
#define AHEAD 32
/* Bytes from the start of a match for which a second line of the cache is asked for. What comes
 * next often follows the source of the match before: words at random take 1.6 of the time without
 * it. */
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

/* How many sequences are found between two looks at whether they are in range. */
#define GROUP 4
/* Bytes of the bit stream that they take at most, with what is read of it at once: no sequence has
 * more than 31 + 16 + 16 bits besides the 26 for the next states. */
#define GROUP_BYTES (GROUP * 12 + 16)
/* From so many sequences on it pays to convert the tables (a microsecond). */
#define ENOUGH 128
/* Marks matches that begin where they are copied to, or less than 16 bytes before. */
#define OVERLAPS ((U32)1 << 31)

/* The tables of the three codes. An entry has, from its lowest bits, how many bits the next state
 * takes (8), how many the value (8), the next state without them, in bytes from the start of the
 * table (16), and the value without its bits (32). The library has the same in another order, which
 * takes more instructions. Its limits for the number of states are part of the format. */
typedef struct {
    U64 of[1 << OffFSELog], ml[1 << MLFSELog], ll[1 << LLFSELog];
} tables_t;

/* Parts of an entry are other types than what it was stored as, so they are read as bytes. */
MEM_STATIC U32 read_32(const BYTE* from)
{
    U32 value;
    ZSTD_memcpy(&value, from, sizeof(value));
    return value;
}

MEM_STATIC U16 read_16(const BYTE* from)
{
    U16 value;
    ZSTD_memcpy(&value, from, sizeof(value));
    return value;
}

#define ENTRY(table, state) ((const BYTE*)(table) + (state))
#define WORD(table, state) read_32(ENTRY(table, state))
#define MORE(table, state) (ENTRY(table, state)[1])
#define NEXT(table, state) ((size_t)read_16(ENTRY(table, state) + 2))
#define BASE(table, state) ((size_t)read_32(ENTRY(table, state) + 4))

/* Where the finding of sequences has come to. */
typedef struct {
    /* The bit stream is read backwards. Of the 8 bytes here, `-bits` bits have been used. */
    const BYTE* in;
    ptrdiff_t bits;
    /* States, in bytes from the start of their table. */
    size_t of, ml, ll;
    /* Where the output and the literals of what was found end. */
    size_t out, literals;
    /* The first address that a match refers to. */
    size_t lowest;
    size_t recent[ZSTD_REP_NUM];
} place_t;

/* What the bits of a sequence say. */
typedef struct {
    size_t of, ml, ll;
    size_t literals, match, offset;
} found_t;

/* A sequence that is to be carried out. */
typedef struct {
    /* Length of the match, with OVERLAPS. */
    U32 literals, match;
    /* Where the match is copied from. */
    size_t from;
} sequence_t;

typedef struct {
    BYTE* out;
    BYTE* end;
    const BYTE* literals;
    const BYTE* literals_end;
    const BYTE* prefix;
    const BYTE* start;
    const BYTE* dictionary_end;
} output_t;

static void convert(U64* to, const ZSTD_seqSymbol* table)
{
    const void* const start = table;
    size_t const states = (size_t)1 << ((const ZSTD_seqSymbol_header*)start)->tableLog;
    size_t n;
    for (n = 0; n < states; n++) {
        ZSTD_seqSymbol const symbol = table[1 + n];
        to[n] = (U64)symbol.baseValue << 32 | (U64)symbol.nextState << 19
                | (U64)symbol.nbAdditionalBits << 8 | symbol.nbBits;
    }
}

/* A sequence that has too many bits for one word: with them, `used` bits of the 8 bytes at `in` and
 * those before are used. */
FORCE_NOINLINE found_t find_long(const tables_t* tables, size_t state_of, size_t state_ml,
                                 size_t state_ll, const BYTE* in, U32 used)
{
    found_t found;
    U32 const of = WORD(tables->of, state_of);
    U32 const ml = WORD(tables->ml, state_ml);
    U32 const ll = WORD(tables->ll, state_ll);
    /* The next states and the bits of the literals, 42 at most, are within the lowest 57. */
    U32 const on = (used - 50) / 8;
    U64 rest = MEM_readLE64(in - on) >> (64 - (used - on * 8));
    U32 const lower = (BYTE)of + (BYTE)ml + (BYTE)ll + (BYTE)(ll >> 8);
#define TAKE(n) (rest & (((U64)1 << (n)) - 1)), rest >>= (n)
    size_t taken;
    taken = TAKE((BYTE)of);
    found.of = (of >> 16) + 8 * taken;
    taken = TAKE((BYTE)ml);
    found.ml = (ml >> 16) + 8 * taken;
    taken = TAKE((BYTE)ll);
    found.ll = (ll >> 16) + 8 * taken;
    taken = TAKE((BYTE)(ll >> 8));
    found.literals = BASE(tables->ll, state_ll) + taken;
    /* And those before these, at most 47 and 8 of others, within the highest. */
    rest = MEM_readLE64(in) >> (64 - (used - lower));
    taken = TAKE((BYTE)(ml >> 8));
    found.match = BASE(tables->ml, state_ml) + taken;
    taken = TAKE((BYTE)(of >> 8));
    found.offset = BASE(tables->of, state_of) + taken;
#undef TAKE
    return found;
}

/* Copies a match of more than 32 bytes, or one that overlaps what it is copied to. */
FORCE_NOINLINE BYTE* copy_long(BYTE* to, const BYTE* from, U32 length)
{
    BYTE* const end = to + (length & ~OVERLAPS);
    if (length & OVERLAPS) {
        ZSTD_overlapCopy8(&to, &from, (size_t)(to - from));
        if (to < end)
            ZSTD_wildcopy(to, from, end - to, ZSTD_overlap_src_before_dst);
    } else {
        ZSTD_wildcopy(to, from, end - to, ZSTD_no_overlap);
    }
    return end;
}

/* Carries out any sequence, or finds that it is damaged. */
static size_t carry_out_checked(output_t* output, const sequence_t* todo)
{
    seq_t sequence;
    size_t written;
    sequence.litLength = todo->literals;
    sequence.matchLength = todo->match & ~OVERLAPS;
    sequence.offset = (size_t)output->out + todo->literals - todo->from;
    written = ZSTD_execSequence(output->out, output->end, sequence, &output->literals,
                                output->literals_end, output->prefix, output->start,
                                output->dictionary_end);
    if (!ZSTD_isError(written))
        output->out += written;
    return written;
}

#define NAME(x) x##_default
#define TARGET
#define LOW(x, n) ((x) & (((U64)1 << ((n)&63)) - 1))
#include "sequences.h"
#undef NAME
#undef TARGET
#undef LOW

/* Other compilers have no way to use them in one function only, and 32 bits never come here. */
#if DYNAMIC_BMI2 && defined(__GNUC__) && defined(__x86_64__)
#define WITH_BMI2
#include <immintrin.h>
#define NAME(x) x##_bmi2
#define TARGET BMI2_TARGET_ATTRIBUTE
#define LOW(x, n) _bzhi_u64((x), (unsigned)(n))
#include "sequences.h"
#undef NAME
#undef TARGET
#undef LOW
#endif

/* Carries out all sequences of a block whose literals lie in one piece. */
static size_t carry_out(ZSTD_DCtx* context, BYTE* to, size_t room, const BYTE* from, size_t size,
                        size_t count)
{
    output_t output;
    seqState_t state;
    size_t done = 0;
    int i;

    output.out = to;
    output.end = context->litBufferLocation == ZSTD_in_dst ? context->litBuffer : to + room;
    output.literals = context->litPtr;
    output.literals_end = context->litBufferEnd;
    output.prefix = context->prefixStart;
    output.start = context->virtualStart;
    output.dictionary_end = context->dictEnd;
    context->fseEntropy = 1;
    for (i = 0; i < ZSTD_REP_NUM; i++)
        state.prevOffset[i] = context->entropy.rep[i];
    RETURN_ERROR_IF(ERR_isError(BIT_initDStream(&state.DStream, from, size)), corruption_detected,
                    "");
    ZSTD_initFseState(&state.stateLL, &state.DStream, context->LLTptr);
    ZSTD_initFseState(&state.stateOffb, &state.DStream, context->OFTptr);
    ZSTD_initFseState(&state.stateML, &state.DStream, context->MLTptr);

    /* Less room than is written at once is left to the library. So are addresses from which an
     * offset, of 33 bits at most, could lead around zero. */
    if (count >= ENOUGH && size > GROUP_BYTES && output.end - to > WILDCOPY_OVERLENGTH
        && (U64)(size_t)output.prefix >> 33 != 0) {
        place_t place;
        place.in = (const BYTE*)state.DStream.ptr;
        place.bits = -(ptrdiff_t)state.DStream.bitsConsumed;
        place.of = state.stateOffb.state * 8;
        place.ml = state.stateML.state * 8;
        place.ll = state.stateLL.state * 8;
        place.out = (size_t)output.out;
        place.literals = (size_t)output.literals;
        place.lowest = (size_t)-1;
        for (i = 0; i < ZSTD_REP_NUM; i++)
            place.recent[i] = state.prevOffset[i];
#ifdef WITH_BMI2
        if (ZSTD_DCtx_get_bmi2(context))
            done = carry_out_most_bmi2(context, &place, from, count, &output);
        else
#endif
            done = carry_out_most_default(context, &place, from, count, &output);
        if (ZSTD_isError(done))
            return done;
        /* A long sequence uses more bits than a word has, which means damage to the library. What
         * is left of the stream is more than that. */
        place.in -= -place.bits / 8;
        state.DStream.ptr = (const char*)place.in;
        state.DStream.bitContainer = MEM_readLEST(place.in);
        state.DStream.bitsConsumed = (unsigned)(-place.bits % 8);
        BIT_reloadDStream(&state.DStream);
        state.stateOffb.state = place.of / 8;
        state.stateML.state = place.ml / 8;
        state.stateLL.state = place.ll / 8;
        for (i = 0; i < ZSTD_REP_NUM; i++)
            state.prevOffset[i] = place.recent[i];
    }
    for (; done < count; done++) {
        seq_t const sequence =
            ZSTD_decodeSequence(&state, ZSTD_lo_isRegularOffset, done + 1 == count);
        size_t const written =
            ZSTD_execSequence(output.out, output.end, sequence, &output.literals,
                              output.literals_end, output.prefix, output.start,
                              output.dictionary_end);
        if (UNLIKELY(ZSTD_isError(written)))
            return written;
        output.out += written;
    }
    RETURN_ERROR_IF(!BIT_endOfDStream(&state.DStream), corruption_detected, "");
    for (i = 0; i < ZSTD_REP_NUM; i++)
        context->entropy.rep[i] = (U32)state.prevOffset[i];
    {
        size_t const rest = (size_t)(output.literals_end - output.literals);
        RETURN_ERROR_IF(rest > (size_t)(output.end - output.out), dstSize_tooSmall, "");
        ZSTD_memmove(output.out, output.literals, rest);
        output.out += rest;
    }
    return (size_t)(output.out - to);
}

/* Decodes one compressed block, as the function of the library does. */
size_t redwarfs_zstd_block(ZSTD_DCtx* context, void* to, size_t room, const void* from,
                           size_t size, const streaming_operation streaming)
{
    const BYTE* in = from;
    int count;
    /* There the library tells apart long offsets, too, and words do not hold what they do here. */
    if (MEM_32bits() || !MEM_isLittleEndian())
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
        return carry_out(context, to, room, in, size, (size_t)count);
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
