/* Carrying out the sequences of a block, for `decoder.c`, which includes this once for every kind of
 * processor, with these defined:
 *
 *   NAME(x)    names functions of this kind,
 *   TARGET     the attribute that lets the compiler use its instructions,
 *   LOW(x, n)  the lowest bits of x, as many as the lowest byte of n says, 31 at most.
 *
 * What decides how long a sequence takes is the number of instructions, and the way from the states
 * of the three codes to the next ones. So all that a sequence has in the bit stream is fetched at once,
 * and split from its end; lengths are compared with what there is of room and literals for GROUP
 * sequences at a time; and what seldom happens is elsewhere.
 */

/* Finds the next sequence. */
TARGET FORCE_INLINE_TEMPLATE void NAME(find)(const tables_t* tables, place_t* place,
                                             sequence_t* sequence)
{
    found_t found;
    size_t const word_of = WORD(tables->of, place->of);
    size_t const word_ml = WORD(tables->ml, place->ml);
    size_t const word_ll = WORD(tables->ll, place->ll);
    size_t const sum = word_of + word_ml + word_ll;
    ptrdiff_t const odd = place->bits | -8;
    ptrdiff_t const bits = odd - (BYTE)sum - (BYTE)(sum >> 8);

    place->in += (place->bits >> 3) + 1;
    place->bits = bits;
    if (UNLIKELY(bits < -64)) {
        found = find_long(tables, place->of, place->ml, place->ll, place->in, (U32)-bits);
    } else {
        size_t const more_ll = MORE(tables->ll, place->ll);
        size_t const more_ml = MORE(tables->ml, place->ml);
        size_t const more_of = MORE(tables->of, place->of);
        U64 rest = MEM_readLE64(place->in) >> (bits & 63);
        found.of = NEXT(tables->of, place->of) + 8 * LOW(rest, word_of);
        rest >>= word_of & 63;
        found.ml = NEXT(tables->ml, place->ml) + 8 * LOW(rest, word_ml);
        rest >>= word_ml & 63;
        found.ll = NEXT(tables->ll, place->ll) + 8 * LOW(rest, word_ll);
        rest >>= word_ll & 63;
        found.literals = BASE(tables->ll, place->ll) + LOW(rest, more_ll);
        rest >>= more_ll & 63;
        found.match = BASE(tables->ml, place->ml) + LOW(rest, more_ml);
        rest >>= more_ml & 63;
        found.offset = BASE(tables->of, place->of) + LOW(rest, more_of);
    }

    if (MORE(tables->of, place->of) > 1) {
        place->recent[2] = place->recent[1];
        place->recent[1] = place->recent[0];
    } else {
        size_t const which = found.offset + (BASE(tables->ll, place->ll) == 0);
        size_t offset = which == 0 ? place->recent[0] : place->recent[1];
        if (which == 2)
            offset = place->recent[2];
        if (UNLIKELY(which == 3)) {
            offset = place->recent[0] - 1;
            /* As in the library: further back than there can be anything. */
            offset -= !offset;
            if (offset + 1 == 0)
                place->lowest = 0;
        }
        found.offset = offset;
        place->recent[2] = which < 2 ? place->recent[2] : place->recent[1];
        place->recent[1] = which == 0 ? place->recent[1] : place->recent[0];
    }
    place->recent[0] = found.offset;
    place->of = found.of;
    place->ml = found.ml;
    place->ll = found.ll;

    sequence->literals = (U32)found.literals;
    sequence->match = (U32)found.match;
    if (UNLIKELY(found.offset < WILDCOPY_VECLEN))
        sequence->match |= OVERLAPS;
    {
        size_t const to = place->out + found.literals;
        size_t const from = to - found.offset;
        sequence->from = from;
        place->out = to + found.match;
        place->literals += found.literals;
        PREFETCH_L1((const BYTE*)from);
        PREFETCH_L1((const BYTE*)(from + NEXT_LINE));
        place->lowest = MIN(place->lowest, from);
    }
}

/* Carries out a sequence that is known to be in range. Reads and writes up to 31 bytes more than it
 * has. */
TARGET FORCE_INLINE_TEMPLATE BYTE* NAME(carry_out)(BYTE* out, const BYTE** literals,
                                                  const sequence_t* sequence)
{
    const BYTE* from = (const BYTE*)sequence->from;
    BYTE* const to = out + sequence->literals;
    U32 const length = sequence->match;

    ZSTD_copy16(out, *literals);
    if (UNLIKELY(sequence->literals > 16)) {
        size_t at = 16;
        do {
            ZSTD_copy16(out + at, *literals + at);
            ZSTD_copy16(out + at + 16, *literals + at + 16);
            at += 32;
        } while (at < sequence->literals);
    }
    *literals += sequence->literals;
    if (UNLIKELY(length > 32))
        return copy_long(to, from, length);
    ZSTD_copy16(to, from);
    ZSTD_copy16(to + 16, from + 16);
    return to + length;
}

/* Carries out sequences of a block while there are enough of them, and bits; then those that are
 * found. `count` is how many there are at most, the last of which stays. Returns an error, or how
 * many were carried out. */
TARGET FORCE_NOINLINE size_t NAME(carry_out_most)(const ZSTD_DCtx* context, place_t* at_first,
                                                 const BYTE* from, size_t count, output_t* output)
{
    tables_t tables;
    sequence_t ring[AHEAD];
    place_t place = *at_first;
    const BYTE* const in_limit = from + GROUP_BYTES;
    size_t const prefix = (size_t)output->prefix;
    size_t const out_limit = (size_t)output->end - WILDCOPY_OVERLENGTH;
    size_t const literals_limit = (size_t)output->literals_end;
    BYTE* out = output->out;
    const BYTE* literals = output->literals;
    sequence_t* group = ring;
    size_t found = 0, done = 0, i;

    convert(tables.of, context->OFTptr);
    convert(tables.ml, context->MLTptr);
    convert(tables.ll, context->LLTptr);

/* Whether another group can be found, and whether all that is found is in range. */
#define GO_ON                                                                                      \
    (found + GROUP < count && place.in >= in_limit && place.out <= out_limit                       \
     && place.literals <= literals_limit && place.lowest >= prefix)

    for (; found < AHEAD && GO_ON; found += GROUP)
        for (i = 0; i < GROUP; i++)
            NAME(find)(&tables, &place, ring + found + i);
    if (found == AHEAD) {
        while (GO_ON) {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 4
#endif
            for (i = 0; i < GROUP; i++) {
                out = NAME(carry_out)(out, &literals, group + i);
                NAME(find)(&tables, &place, group + i);
            }
            found += GROUP;
            group += GROUP;
            if (group == ring + AHEAD)
                group = ring;
        }
        done = found - AHEAD;
    }
#undef GO_ON

    *at_first = place;
    output->out = out;
    output->literals = literals;
    for (; done < found; done++) {
        size_t const error = carry_out_checked(output, ring + done % AHEAD);
        if (UNLIKELY(ZSTD_isError(error)))
            return error;
    }
    return found;
}
