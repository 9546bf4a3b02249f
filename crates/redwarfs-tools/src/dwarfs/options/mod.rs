//! The list after `-o`: each option is looked up in the table.

use std::ffi::OsString;

use super::exit::EXIT_SETUP;
use super::settings::{Settings, Value};
use super::table::OPTIONS;
use crate::common::error::{Result, ToolError, display_name};
use crate::common::os::{argument, argument_bytes};
use crate::common::suggest::similar;

/// The warning for a request to write.
pub(super) const READ_ONLY: &str = "the mount is read-only: rw has no effect";

/// Further flags that mount(8), `/etc/fstab` and programs for other drivers may hand over and that
/// mean nothing here.
const IGNORED: [&str; 22] = [
    "_netdev",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "sync",
    "async",
    "dirsync",
    "mand",
    "nomand",
    "silent",
    "loud",
    "iversion",
    "noiversion",
    "symfollow",
    "nosymfollow",
];

/// Notes of mount(8) about the mounting user, and what it finds in the mount table.
const IGNORED_VALUES: [&str; 5] = ["comment", "uhelper", "helper", "user_id", "group_id"];

/// Whether a name is free for notes of other programs.
fn is_note(name: &str) -> bool {
    ["x-", "X-"].iter().any(|x| name.starts_with(x))
}

/// Interprets single options; later ones win.
pub(super) fn interpret(options: &[OsString]) -> Result<Settings> {
    let mut settings = Settings::default();
    for option in options {
        let bytes = argument_bytes(option);
        let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
            Some(at) => (
                bytes.get(..at).unwrap_or_default(),
                bytes.get(at + 1..).map(|value| argument(value.to_vec())),
            ),
            None => (bytes.as_ref(), None),
        };
        let known = match (std::str::from_utf8(name), &value) {
            (Ok(name), Some(value)) => set_to(Value { name, value }, &mut settings)?,
            (Ok(name), None) => set(name, &mut settings),
            (Err(_), _) => false,
        };
        if known {
            if cfg!(windows) && has_no_effect_on_windows(name) {
                let name = String::from_utf8_lossy(name);
                let text = format!("{name} has no effect on Windows");
                settings.warnings.push(text);
            }
            continue;
        }
        let shown = display_name(option);
        let error = if value.is_none() && needs_value(name) {
            ToolError::new(format!("option '{shown}' needs a value"))
        } else {
            ToolError::new(format!("unknown option: -o {shown}")).hint(advice(name))
        };
        return Err(error.code(EXIT_SETUP));
    }
    settings.finish()
}

/// Whether an option does nothing on Windows but something elsewhere.
fn has_no_effect_on_windows(name: &[u8]) -> bool {
    let mut idle = OPTIONS.iter().filter(|entry| !entry.acts_on_windows());
    idle.any(|entry| entry.names().iter().any(|own| own.as_bytes() == name))
}

/// Obeys an option without a value. Whether there is one of this name.
fn set(name: &str, settings: &mut Settings) -> bool {
    OPTIONS.iter().any(|entry| entry.set(name, settings))
        || IGNORED.contains(&name)
        || is_note(name)
}

/// Obeys an option with a value. Whether there is one of this name.
fn set_to(value: Value<'_>, settings: &mut Settings) -> Result<bool> {
    for entry in &OPTIONS {
        if entry.set_to(value, settings)? {
            return Ok(true);
        }
    }
    Ok(IGNORED_VALUES.contains(&value.name) || is_note(value.name))
}

/// Whether an option takes a value.
fn needs_value(name: &[u8]) -> bool {
    let mut valued = OPTIONS.iter().filter(|entry| entry.takes_value());
    valued.any(|entry| entry.names().iter().any(|own| own.as_bytes() == name))
        || IGNORED_VALUES.iter().any(|own| own.as_bytes() == name)
}

/// What to write instead of an option that is not known.
fn advice(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let known = OPTIONS.iter().flat_map(|entry| {
        let value = entry.form.split_once('=');
        let value = value.map_or_else(String::new, |(_, value)| format!("={value}"));
        let names = entry.names().into_iter();
        names.map(move |name| (name, value.clone()))
    });
    let known: Vec<(String, String)> = known.collect();
    let Some(meant) = similar(&name, known.iter().map(|(name, _)| name)) else {
        return "try 'dwarfs --help'".to_owned();
    };
    let value = known.iter().find(|(name, _)| name == meant);
    let value = value.map_or("", |(_, value)| value);
    match name == *meant {
        true => format!("it takes no value: -o {meant}"),
        false => format!("did you mean '-o {meant}{value}'?"),
    }
}

#[cfg(test)]
mod tests;
