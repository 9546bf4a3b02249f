//! The grammar of codec selection after the name, `name[:key[=value]]...`.
//!
//! All errors of a spec are found here, before any work starts: an unknown name or key, a duplicate
//! key, a missing or superfluous value, and numbers out of range. Each error is one line that names
//! option and codec.

use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;

/// Errors of a codec spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The spec is empty or starts with a colon.
    #[error("missing compression name")]
    MissingName,
    /// No codec has this name.
    #[error("unknown compression: {name} (one of {known})")]
    UnknownName {
        /// The name.
        name: String,
        /// The names of all codecs of this build, separated by commas.
        known: String,
    },
    /// The codec exists in the format, but this build is without it.
    #[error("compression '{name}' is not in this build, which has {known}")]
    Unsupported {
        /// The name.
        name: String,
        /// The names of all codecs of this build, separated by commas.
        known: String,
    },
    /// Keys that the codec does not have, separated by commas.
    #[error("invalid option(s) for choice '{codec}': {keys} ({advice})")]
    UnknownOptions {
        /// Name of the codec.
        codec: &'static str,
        /// The keys, in the order given.
        keys: String,
        /// What to write instead.
        advice: String,
    },
    /// A key that needs a value has none.
    #[error("missing value for option '{option}' of choice '{codec}'")]
    MissingValue {
        /// Name of the codec.
        codec: &'static str,
        /// The key.
        option: &'static str,
    },
    /// A flag was given a value.
    #[error("value not allowed for option '{option}' of choice '{codec}'")]
    UnexpectedValue {
        /// Name of the codec.
        codec: &'static str,
        /// The key.
        option: &'static str,
    },
    /// A key occurs twice.
    #[error("duplicate option '{option}' for choice '{codec}'")]
    Duplicate {
        /// Name of the codec.
        codec: &'static str,
        /// The key.
        option: &'static str,
    },
    /// A value that is no number, out of range, or none of the choices.
    #[error("invalid option '{option}' for choice '{codec}': {problem}")]
    InvalidValue {
        /// Name of the codec.
        codec: &'static str,
        /// The key.
        option: &'static str,
        /// The problem, with the range or the choices.
        problem: String,
    },
}

/// The values that an option accepts.
pub(crate) enum Kind {
    Flag,
    /// Whole numbers of a fixed range.
    Int(RangeInclusive<i64>),
    /// Whole numbers in a range that the library of the codec tells.
    Asked(fn() -> RangeInclusive<i64>),
    Choice(&'static [&'static str]),
}

/// One option of a codec.
pub(crate) struct OptionDef {
    pub(crate) key: &'static str,
    pub(crate) kind: Kind,
    /// The value without the option, if it is a number known beforehand.
    pub(crate) default: Option<i64>,
    pub(crate) help: &'static str,
}

pub(crate) const fn flag(key: &'static str, help: &'static str) -> OptionDef {
    option(key, Kind::Flag, None, help)
}

pub(crate) const fn option(
    key: &'static str,
    kind: Kind,
    default: Option<i64>,
    help: &'static str,
) -> OptionDef {
    OptionDef {
        key,
        kind,
        default,
        help,
    }
}

/// The names in a table of choices.
pub(crate) const fn names<T: Copy, const N: usize>(
    table: [(&'static str, T); N],
) -> [&'static str; N] {
    let mut names = [""; N];
    let mut i = 0;
    while i < N {
        names[i] = table[i].0;
        i += 1;
    }
    names
}

/// The value of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    Set,
    Int(i64),
    Choice(&'static str),
}

impl OptionDef {
    pub(crate) fn range(&self) -> Option<RangeInclusive<i64>> {
        match &self.kind {
            Kind::Int(range) => Some(range.clone()),
            Kind::Asked(range) => Some(range()),
            Kind::Flag | Kind::Choice(_) => None,
        }
    }

    fn parse(&self, codec: &'static str, value: Option<&str>) -> Result<Value, SpecError> {
        let option = self.key;
        let invalid = |problem: String| SpecError::InvalidValue {
            codec,
            option,
            problem,
        };
        let value = match (&self.kind, value) {
            (Kind::Flag, None) => return Ok(Value::Set),
            (Kind::Flag, Some(_)) => return Err(SpecError::UnexpectedValue { codec, option }),
            (_, None | Some("")) => return Err(SpecError::MissingValue { codec, option }),
            (_, Some(value)) => value,
        };
        if let Kind::Choice(choices) = self.kind {
            return choices
                .iter()
                .find(|choice| **choice == value)
                .map(|choice| Value::Choice(choice))
                .ok_or_else(|| invalid(format!("'{value}' is not one of {}", choices.join(", "))));
        }
        let Some(range) = self.range() else {
            unreachable!("flags and choices have been dealt with")
        };
        let Some(number) = parse_decimal(value) else {
            return Err(invalid(format!("'{value}' is not a decimal number")));
        };
        match number {
            Some(number) if range.contains(&number) => Ok(Value::Int(number)),
            _ => Err(invalid(out_of_range(value, &range))),
        }
    }
}

pub(crate) fn out_of_range(value: impl fmt::Display, range: &RangeInclusive<i64>) -> String {
    format!("{value} is out of range {}..{}", range.start(), range.end())
}

/// A decimal number with an optional minus sign. `None` if it is no number, `Some(None)` if the number
/// is too large for any range.
fn parse_decimal(text: &str) -> Option<Option<i64>> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().ok())
}

/// The values of a spec, one slot for each option of the codec.
pub(crate) struct Values {
    codec: &'static str,
    options: &'static [OptionDef],
    slots: Vec<Option<Value>>,
}

impl Values {
    /// Reads the options after the name of a codec.
    pub(crate) fn parse<'a>(
        codec: &'static str,
        options: &'static [OptionDef],
        parts: impl Iterator<Item = &'a str>,
    ) -> Result<Self, SpecError> {
        let mut slots = vec![None; options.len()];
        let mut unknown = Vec::new();
        for part in parts {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (part, None),
            };
            let known = options.iter().zip(&mut slots);
            let Some((option, slot)) = known.into_iter().find(|(option, _)| option.key == key)
            else {
                unknown.push(if key.is_empty() { "''" } else { key });
                continue;
            };
            if slot.is_some() {
                return Err(SpecError::Duplicate {
                    codec,
                    option: option.key,
                });
            }
            *slot = Some(option.parse(codec, value)?);
        }
        if !unknown.is_empty() {
            let keys = unknown.join(", ");
            return Err(SpecError::UnknownOptions {
                advice: advice(codec, options, &keys),
                codec,
                keys,
            });
        }
        Ok(Self {
            codec,
            options,
            slots,
        })
    }

    pub(crate) fn get(&self, key: &str) -> Option<Value> {
        let known = self.options.iter().zip(&self.slots);
        known
            .filter(|(option, _)| option.key == key)
            .find_map(|(option, slot)| slot.or(option.default.map(Value::Int)))
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The value of a number, which the table keeps within i32 or u32.
    pub(crate) fn unsigned(&self, key: &str) -> Option<u32> {
        match self.get(key) {
            Some(Value::Int(value)) => u32::try_from(value).ok(),
            _ => None,
        }
    }

    pub(crate) fn signed(&self, key: &str) -> i32 {
        match self.get(key) {
            Some(Value::Int(value)) => i32::try_from(value).unwrap_or_default(),
            _ => 0,
        }
    }

    pub(crate) fn choice<T: Copy>(&self, key: &str, table: &[(&str, T)]) -> Option<T> {
        let Some(Value::Choice(value)) = self.get(key) else {
            return None;
        };
        let row = table.iter().find(|(name, _)| *name == value);
        row.map(|(_, choice)| *choice)
    }

    /// The spec in canonical form: options in the order of the help text, numbers
    /// with a default always, other options if given.
    pub(crate) fn canonical(&self) -> String {
        let mut text = self.codec.to_owned();
        for option in self.options {
            let key = option.key;
            let written = match self.get(key) {
                None => Ok(()),
                Some(Value::Set) => write!(text, ":{key}"),
                Some(Value::Int(value)) => write!(text, ":{key}={value}"),
                Some(Value::Choice(value)) => write!(text, ":{key}={value}"),
            };
            written.expect("writing to a string cannot fail");
        }
        text
    }
}

/// What to write instead of a key that a codec does not have.
fn advice(codec: &str, options: &[OptionDef], keys: &str) -> String {
    // A bare number is meant for the level, or for what a codec has instead.
    let number = options.iter().find(|option| option.range().is_some());
    if let Some(option) = number
        && parse_decimal(keys).is_some()
    {
        return format!("write {codec}:{}={keys}", option.key);
    }
    if options.is_empty() {
        return "it has none".to_owned();
    }
    let keys: Vec<&str> = options.iter().map(|option| option.key).collect();
    format!("one of {}", keys.join(", "))
}
