use super::encode::{Encoder, Match};
use super::{MAX_SYMBOL, MAX_SYMBOLS, SYMBOLS_AT, Symbol, SymbolTable};

/// Bytes that are looked at in every round. The paper uses 16 KiB; more is slower but learns
/// tables that fit better, and names are a small part of what building an image costs.
const SAMPLE: usize = 256 << 10;
/// Rounds of learning. Three double the longest symbols from 1 to 8 bytes; the others let
/// better symbols push out worse ones.
const ROUNDS: usize = 8;
/// Additional weight of a symbol of one byte: without it, the byte would need an escape, and twice its
/// size.
const SINGLE_BYTE_WEIGHT: u64 = 8;
/// What each use of a symbol might save, in bytes, when it is decided whether it is kept.
const SAVED_PER_USE: [u64; 3] = [1, 2, 3];
/// Codes of the counting pass: symbols first, then one for each literal byte.
const CODES: usize = 512;
const FIRST_LITERAL: usize = 256;

pub(super) fn train<S: AsRef<[u8]>>(samples: &[S]) -> SymbolTable {
    let sizes = samples.iter().map(|string| string.as_ref().len() as u64);
    let total = sizes.sum();
    let sample = pick_sample(samples, total);
    let sampled = sample.iter().map(|string| string.len() as u64).sum();
    let scale = Scale { total, sampled };
    let mut counters = Counters::new();
    let mut symbols = Vec::new();
    let mut best = prune(&[], &sample, scale);
    for round in 0..ROUNDS {
        counters.count(&Encoder::new(&symbols), &sample);
        symbols = counters.choose(&symbols, round + 1 == ROUNDS);
        let (cost, pruned) = prune(&symbols, &sample, scale);
        if cost < best.0 {
            best = (cost, pruned);
        }
    }
    best.1
}

/// Numbers of bytes, to conclude from the sample to the whole.
#[derive(Clone, Copy)]
struct Scale {
    total: u64,
    sampled: u64,
}

impl Scale {
    fn up(self, count: u64) -> u64 {
        let scaled = u128::from(count) * u128::from(self.total) / u128::from(self.sampled.max(1));
        scaled as u64
    }
}

/// Strings of about [`SAMPLE`] bytes in all, spread evenly.
fn pick_sample<S: AsRef<[u8]>>(samples: &[S], total: u64) -> Vec<&[u8]> {
    let samples = samples.iter().map(AsRef::as_ref);
    if total <= SAMPLE as u64 {
        return samples.collect();
    }
    let (mut seen, mut taken) = (0_u64, 0_u64);
    let mut picked = Vec::new();
    for string in samples {
        if u128::from(taken) * u128::from(total) <= u128::from(seen) * SAMPLE as u128 {
            let part = &string[..string.len().min(SAMPLE)];
            taken += part.len() as u64;
            picked.push(part);
        }
        seen += string.len() as u64;
    }
    picked
}

/// How often codes, and pairs of neighbouring codes, occur in the compressed sample.
struct Counters {
    single: Vec<u32>,
    pair: Vec<u32>,
}

impl Counters {
    fn new() -> Self {
        Self {
            single: vec![0; CODES],
            pair: vec![0; CODES * CODES],
        }
    }

    fn count(&mut self, encoder: &Encoder, sample: &[&[u8]]) {
        self.single.fill(0);
        self.pair.fill(0);
        for &string in sample {
            let mut rest = string;
            let mut previous = None;
            while let Some(&first) = rest.first() {
                let found = encoder.longest(rest);
                let code = match found {
                    Match::Symbol { code, .. } => usize::from(code),
                    Match::Literal(byte) => FIRST_LITERAL + usize::from(byte),
                };
                self.add(previous, code);
                // Counting the first byte as well lets short symbols come back and lets
                // symbols grow by one byte at a time.
                if found.len() > 1 {
                    self.add(previous, FIRST_LITERAL + usize::from(first));
                }
                previous = Some(code);
                rest = &rest[found.len()..];
            }
        }
    }

    fn add(&mut self, previous: Option<usize>, code: usize) {
        self.single[code] += 1;
        if let Some(previous) = previous {
            self.pair[previous * CODES + code] += 1;
        }
    }

    /// The symbols with the highest gain: those of the previous table, single bytes and,
    /// unless this is the last round, all pairs of them that occurred.
    fn choose(&self, symbols: &[Symbol], last: bool) -> Vec<Symbol> {
        let symbol_of = |code: usize| match code.checked_sub(FIRST_LITERAL) {
            None => symbols.get(code).copied(),
            Some(byte) => Some(Symbol::byte(byte as u8)),
        };
        let mut candidates = Vec::new();
        for (code, &count) in self.single.iter().enumerate() {
            let Some(symbol) = symbol_of(code).filter(|_| count > 0) else {
                continue;
            };
            let weight = if symbol.len() == 1 {
                SINGLE_BYTE_WEIGHT
            } else {
                symbol.len() as u64
            };
            candidates.push((symbol, weight * u64::from(count)));
            if last || symbol.len() >= MAX_SYMBOL {
                continue;
            }
            let pairs = &self.pair[code * CODES..(code + 1) * CODES];
            for (next, &count) in pairs.iter().enumerate().filter(|(_, count)| **count > 1) {
                if let Some(next) = symbol_of(next) {
                    let joined = symbol.concat(next);
                    candidates.push((joined, joined.len() as u64 * u64::from(count)));
                }
            }
        }
        candidates.sort_unstable();
        candidates.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                earlier.1 += later.1;
            }
            same
        });
        candidates.sort_unstable_by_key(|&(symbol, gain)| (u64::MAX - gain, symbol));
        candidates.truncate(MAX_SYMBOLS);
        candidates.into_iter().map(|(symbol, _)| symbol).collect()
    }
}

/// Removes symbols that take more space in the table than they save. Estimates the size of the table
/// and of all data that is compressed with it.
///
/// A symbol that is used `count` times saves at least one byte each time. The further saving depends on
/// its replacement, so the best of several assumptions is taken.
fn prune(symbols: &[Symbol], sample: &[&[u8]], scale: Scale) -> (u64, SymbolTable) {
    let (uses, compressed) = usage(symbols, sample);
    let mut best = (
        estimate(symbols, compressed, scale),
        SymbolTable::from_symbols(symbols.to_vec()),
    );
    for saved in SAVED_PER_USE {
        let kept: Vec<_> = symbols
            .iter()
            .zip(&uses)
            .filter(|&(symbol, &count)| scale.up(count).saturating_mul(saved) > symbol.len() as u64)
            .map(|(&symbol, _)| symbol)
            .collect();
        if kept.len() == symbols.len() {
            continue;
        }
        let (_, compressed) = usage(&kept, sample);
        let cost = estimate(&kept, compressed, scale);
        if cost < best.0 {
            best = (cost, SymbolTable::from_symbols(kept));
        }
    }
    best
}

/// Size of the serialized table and of everything that is compressed with it.
fn estimate(symbols: &[Symbol], compressed: u64, scale: Scale) -> u64 {
    let stored: usize = symbols.iter().map(|symbol| symbol.len()).sum();
    scale.up(compressed) + (SYMBOLS_AT + stored) as u64
}

/// How often each symbol is used for the sample, and the compressed size of the sample.
fn usage(symbols: &[Symbol], sample: &[&[u8]]) -> (Vec<u64>, u64) {
    let encoder = Encoder::new(symbols);
    let mut uses = vec![0; symbols.len()];
    let mut size = 0;
    for &string in sample {
        let mut rest = string;
        while !rest.is_empty() {
            let found = encoder.longest(rest);
            match found {
                Match::Symbol { code, .. } => {
                    uses[usize::from(code)] += 1;
                    size += 1;
                }
                Match::Literal(_) => size += 2,
            }
            rest = &rest[found.len()..];
        }
    }
    (uses, size)
}
