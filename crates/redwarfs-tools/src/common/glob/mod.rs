//! Glob patterns for paths: filter rules and extraction patterns.
//!
//! A pattern is matched against the whole of a path without a leading slash.
//!
//! | token | matches |
//! |---|---|
//! | `?` | one character except `/` |
//! | `*` | any run of characters except `/`; at least one if the `*` is a whole path component |
//! | `**` | anything |
//! | `**/` at the start or after `/` | like `**`, and the slash is optional: `**/x` matches `a/x`, `x` and also `abcx` |
//! | `[abc]`, `[a-h]` | one character of the set; a range never holds `/` |
//! | `[!abc]` | one character that is not in the set, `/` included |
//! | `[]a]`, `[!]a]` | a `]` in first place is an ordinary character |
//! | `[^a]`, `[\a]` | `^` and `\` in a set are ordinary characters |
//! | `{a,b{c,d}}` | alternatives; a comma elsewhere is ordinary |
//! | `\x` | `x` itself |
//!
//! Names are bytes. Valid UTF-8 is matched by character. Any other byte counts as one character.
//!
//! A match follows all possibilities at once. For any pattern, its time is proportional to the product
//! of the lengths of pattern and path.

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

/// Characters are Unicode scalar values; bytes that are not UTF-8 come after them.
const STRAY: u32 = 0x11_0000;

const SLASH: u32 = b'/' as u32;

/// A compiled pattern; about 12 bytes per character of the pattern.
#[derive(Debug, Clone)]
pub struct Glob {
    program: Vec<Step>,
    classes: Vec<Class>,
    ignore_case: bool,
    /// What every match begins and ends with, for a quick no; empty if case is ignored.
    prefix: Vec<u8>,
    suffix: Vec<u8>,
    plain: bool,
}

/// Why a text is no pattern. The `Display` form names the pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobError {
    what: String,
    pattern: String,
}

impl fmt::Display for GlobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in pattern: {}", self.what, self.pattern)
    }
}

impl std::error::Error for GlobError {}

/// One step of the automaton. A step that takes a character continues with the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Takes this character (folded if case is ignored).
    One(u32),
    /// Takes any character but the slash.
    NotSlash,
    /// Takes a character of a class.
    Class(usize),
    /// Takes any number of characters but the slash.
    Run,
    /// Takes any number of characters.
    Anything,
    /// Continues at both positions.
    Fork(usize, usize),
    /// Continues at another position.
    Jump(usize),
    /// The pattern is at its end.
    End,
}

#[derive(Debug, Clone)]
struct Class {
    negated: bool,
    /// Inclusive.
    ranges: Vec<(u32, u32)>,
}

/// An open `{`.
struct Brace {
    /// The fork before the alternative that is being read.
    fork: usize,
    /// The jumps at the ends of alternatives.
    ends: Vec<usize>,
}

impl Glob {
    /// Compiles a pattern. With `ignore_case`, characters that differ only in case are equal, in
    /// all scripts.
    ///
    /// # Errors
    /// If brackets or braces do not match, a set is wrong, or a backslash is last.
    pub fn new(pattern: &[u8], ignore_case: bool) -> Result<Self, GlobError> {
        let codes = decode(pattern);
        let wrong = |what: String| GlobError {
            what,
            pattern: super::error::one_line(&String::from_utf8_lossy(pattern)),
        };
        let mut glob = Self {
            program: Vec::with_capacity(codes.len() + 1),
            classes: Vec::new(),
            ignore_case,
            prefix: Vec::new(),
            suffix: Vec::new(),
            plain: true,
        };
        let mut braces: Vec<Brace> = Vec::new();
        let mut at = 0;
        let meta = |c: char| u32::from(c);
        while let Some(&code) = codes.get(at) {
            let next = codes.get(at + 1).copied();
            at += 1;
            let special = b"*?[]{}\\".iter().any(|&b| u32::from(b) == code)
                || (code == meta(',') && !braces.is_empty());
            glob.plain &= !special || code == meta('\\');
            if !special {
                glob.literal(code);
            } else if code == meta('\\') {
                let Some(code) = next else {
                    return Err(wrong("trailing backslash".to_owned()));
                };
                glob.literal(code);
                at += 1;
            } else if code == meta('?') {
                glob.program.push(Step::NotSlash);
            } else if code == meta('*') {
                let starts = at == 1 || codes.get(at - 2) == Some(&SLASH);
                if next == Some(code) {
                    at += 1;
                    glob.program.push(Step::Anything);
                    if starts && codes.get(at) == Some(&SLASH) {
                        at += 1;
                    }
                } else {
                    if starts && next.is_none_or(|c| c == SLASH) {
                        glob.program.push(Step::NotSlash);
                    }
                    glob.program.push(Step::Run);
                }
            } else if code == meta('[') {
                let (class, end) = parse_class(&codes, at).map_err(wrong)?;
                glob.program.push(Step::Class(glob.classes.len()));
                glob.classes.push(class);
                at = end;
            } else if code == meta('{') {
                braces.push(Brace {
                    fork: glob.fork(),
                    ends: Vec::new(),
                });
            } else if code == meta(',')
                && let Some(brace) = braces.last_mut()
            {
                brace.ends.push(glob.program.len());
                glob.program.push(Step::End);
                glob.set_second(brace.fork);
                brace.fork = glob.fork();
            } else if code == meta('}')
                && let Some(brace) = braces.pop()
            {
                // There is no further alternative.
                let here = glob.program.len();
                for (at, to) in brace
                    .ends
                    .into_iter()
                    .map(|at| (at, here))
                    .chain([(brace.fork, brace.fork + 1)])
                {
                    if let Some(step) = glob.program.get_mut(at) {
                        *step = Step::Jump(to);
                    }
                }
            } else {
                return Err(wrong(format!("unmatched '{}'", shown(code))));
            }
        }
        if !braces.is_empty() {
            return Err(wrong("unmatched '{'".to_owned()));
        }
        glob.program.push(Step::End);
        if !ignore_case {
            let ones = |step: &&Step| matches!(step, Step::One(_));
            let program = &glob.program[..glob.program.len() - 1];
            let prefix: Vec<u32> = program.iter().take_while(ones).map(code_of).collect();
            let mut suffix: Vec<u32> = program.iter().rev().take_while(ones).map(code_of).collect();
            suffix.reverse();
            glob.prefix = encode(&prefix);
            // After braces the end of the program may be reached by a jump past these steps.
            if !program.iter().any(|step| matches!(step, Step::Jump(_))) {
                glob.suffix = encode(&suffix);
            }
        }
        Ok(glob)
    }

    /// Whether the pattern fits the whole of `candidate`.
    #[must_use]
    pub fn matches(&self, candidate: &[u8]) -> bool {
        if !candidate.starts_with(&self.prefix) || !candidate.ends_with(&self.suffix) {
            return false;
        }
        let mut now = Positions::new(self.program.len());
        let mut next = Positions::new(self.program.len());
        let mut todo = Vec::new();
        self.reach(0, &mut now, &mut todo);
        let mut ended = now.ended;
        let complete = each_code(candidate, |code| {
            if now.list.is_empty() {
                return false;
            }
            let folded = if self.ignore_case { fold(code) } else { code };
            next.clear();
            for &at in &now.list {
                let (taken, to) = match self.program.get(at) {
                    Some(Step::One(wanted)) => (*wanted == folded, at + 1),
                    Some(Step::NotSlash) => (code != SLASH, at + 1),
                    Some(Step::Run) => (code != SLASH, at),
                    Some(Step::Anything) => (true, at),
                    Some(Step::Class(class)) => (self.in_class(*class, code), at + 1),
                    _ => (false, at),
                };
                if taken {
                    self.reach(to, &mut next, &mut todo);
                }
            }
            std::mem::swap(&mut now, &mut next);
            ended = now.ended;
            true
        });
        complete && ended
    }

    /// Whether the pattern has no special characters (escaped ones are none), so that it can only
    /// match one path, or several that differ in case.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Adds a place and all that can be reached from it without a character.
    fn reach(&self, from: usize, positions: &mut Positions, todo: &mut Vec<usize>) {
        todo.push(from);
        while let Some(at) = todo.pop() {
            let Some(step) = self.program.get(at) else {
                continue;
            };
            if !positions.visit(at) {
                continue;
            }
            match *step {
                Step::Fork(a, b) => todo.extend([b, a]),
                Step::Jump(to) => todo.push(to),
                Step::End => positions.ended = true,
                Step::Run | Step::Anything => {
                    positions.list.push(at);
                    todo.push(at + 1);
                }
                Step::One(_) | Step::NotSlash | Step::Class(_) => positions.list.push(at),
            }
        }
    }

    fn literal(&mut self, code: u32) {
        let code = if self.ignore_case { fold(code) } else { code };
        self.program.push(Step::One(code));
    }

    fn fork(&mut self) -> usize {
        let at = self.program.len();
        self.program.push(Step::Fork(at + 1, at + 1));
        at
    }

    fn set_second(&mut self, fork: usize) {
        let here = self.program.len();
        if let Some(Step::Fork(_, second)) = self.program.get_mut(fork) {
            *second = here;
        }
    }

    fn in_class(&self, class: usize, code: u32) -> bool {
        let Some(class) = self.classes.get(class) else {
            return false;
        };
        let holds = |code: u32| class.ranges.iter().any(|&(a, b)| (a..=b).contains(&code));
        let found = holds(code)
            || (self.ignore_case
                && same_letter(fold(code)).is_some_and(|all| all.iter().any(|&c| holds(c))));
        found != class.negated
    }
}

/// The positions at which a match may be after some characters.
struct Positions {
    list: Vec<usize>,
    /// For each place the round in which it was visited last.
    visited: Vec<u32>,
    round: u32,
    ended: bool,
}

impl Positions {
    fn new(positions: usize) -> Self {
        Self {
            list: Vec::new(),
            visited: vec![0; positions],
            round: 1,
            ended: false,
        }
    }

    fn clear(&mut self) {
        self.list.clear();
        self.ended = false;
        self.round = self.round.wrapping_add(1);
        if self.round == 0 {
            self.visited.fill(0);
            self.round = 1;
        }
    }

    /// False if the place was visited in this round already.
    fn visit(&mut self, at: usize) -> bool {
        match self.visited.get_mut(at) {
            Some(round) if *round != self.round => {
                *round = self.round;
                true
            }
            _ => false,
        }
    }
}

/// Reads a set that begins after its `[`. Also returns the position after the `]`.
fn parse_class(codes: &[u32], start: usize) -> Result<(Class, usize), String> {
    let close = u32::from(b']');
    let dash = u32::from(b'-');
    let mut at = start;
    let negated = codes.get(at) == Some(&u32::from(b'!'));
    if negated {
        at += 1;
    }
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    loop {
        let Some(&first) = codes.get(at) else {
            return Err("unmatched '['".to_owned());
        };
        at += 1;
        if first == close && !ranges.is_empty() {
            return Ok((Class { negated, ranges }, at));
        }
        let mut last = first;
        if codes.get(at) == Some(&dash)
            && let Some(&end) = codes.get(at + 1)
            && end != close
        {
            last = end;
            at += 2;
        }
        if first == SLASH || last == SLASH {
            return Err("invalid character '/' in character class".to_owned());
        }
        if first > last {
            return Err(format!(
                "invalid range '{}-{}' in character class",
                shown(first),
                shown(last)
            ));
        }
        if (first..=last).contains(&SLASH) {
            ranges.extend([(first, SLASH - 1), (SLASH + 1, last)]);
        } else {
            ranges.push((first, last));
        }
    }
}

fn code_of(step: &Step) -> u32 {
    match step {
        Step::One(code) => *code,
        _ => SLASH,
    }
}

/// Calls `visit` for each character until it returns false; whether it never did.
fn each_code(bytes: &[u8], mut visit: impl FnMut(u32) -> bool) -> bool {
    for chunk in bytes.utf8_chunks() {
        let valid = chunk.valid().chars().map(u32::from);
        let stray = chunk.invalid().iter().map(|&b| STRAY + u32::from(b));
        for code in valid.chain(stray) {
            if !visit(code) {
                return false;
            }
        }
    }
    true
}

fn decode(bytes: &[u8]) -> Vec<u32> {
    let mut codes = Vec::with_capacity(bytes.len());
    each_code(bytes, |code| {
        codes.push(code);
        true
    });
    codes
}

fn encode(codes: &[u32]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(codes.len());
    for &code in codes {
        match char::from_u32(code) {
            Some(c) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            None => bytes.extend(u8::try_from(code.wrapping_sub(STRAY))),
        }
    }
    bytes
}

fn shown(code: u32) -> String {
    match char::from_u32(code) {
        Some(c) => super::error::one_line(c.encode_utf8(&mut [0; 4])),
        None => format!("\\x{:02x}", code.wrapping_sub(STRAY)),
    }
}

/// The representative of all characters that differ from `code` only in case.
///
/// This is Unicode's simple case folding in effect: mappings to several characters do not count,
/// and neither do the two letters that are special in Turkish.
fn fold(code: u32) -> u32 {
    if code < 0x80 {
        return match u8::try_from(code) {
            Ok(byte) => byte.to_ascii_lowercase().into(),
            Err(_) => code,
        };
    }
    let Some(c) = char::from_u32(code) else {
        return code;
    };
    if matches!(c, '\u{130}' | '\u{131}') {
        return code;
    }
    let upper = only(c.to_uppercase()).unwrap_or(c);
    only(upper.to_lowercase()).unwrap_or(upper).into()
}

fn only(mut all: impl Iterator<Item = char>) -> Option<char> {
    match (all.next(), all.next()) {
        (Some(c), None) => Some(c),
        _ => None,
    }
}

/// All characters with the same representative, if there are several.
fn same_letter(folded: u32) -> Option<&'static [u32]> {
    static GROUPS: OnceLock<HashMap<u32, Vec<u32>>> = OnceLock::new();
    let groups = GROUPS.get_or_init(|| {
        let mut groups: HashMap<u32, Vec<u32>> = HashMap::new();
        // No script with upper and lower case lies higher.
        for code in 0..0x2_0000 {
            let folded = fold(code);
            if folded != code {
                groups
                    .entry(folded)
                    .or_insert_with(|| vec![folded])
                    .push(code);
            }
        }
        groups
    });
    groups.get(&folded).map(Vec::as_slice)
}

#[cfg(test)]
mod tests;
