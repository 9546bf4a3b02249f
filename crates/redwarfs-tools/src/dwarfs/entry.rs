//! One entry of the table of `-o` options: names, value, and the texts made from them.

use super::settings::{Settings, Value};
use crate::common::error::Result;

/// The section of an option in the help text and the manual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    Image,
    Files,
    Cache,
    Log,
    Mount,
    Ignored,
}

impl Group {
    pub(super) const ALL: [Self; 6] = [
        Self::Image,
        Self::Files,
        Self::Cache,
        Self::Log,
        Self::Mount,
        Self::Ignored,
    ];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Image => "Image",
            Self::Files => "Files and attributes",
            Self::Cache => "Memory and speed",
            Self::Log => "Messages and measurements",
            Self::Mount => "Mount",
            Self::Ignored => "Accepted without effect",
        }
    }
}

/// The effect of an option.
#[derive(Debug, Clone, Copy)]
pub(super) enum Effect {
    /// It takes no value.
    Flag(fn(&mut Settings)),
    /// It takes no value; its opposite gives `false`.
    Switch(fn(&mut Settings, bool)),
    /// It takes a value.
    Value(fn(&mut Settings, Value<'_>) -> Result<()>),
    /// It warns that it does nothing.
    Obsolete,
}

/// One option, or two that are each other's opposite.
#[derive(Debug, Clone, Copy)]
pub(super) struct MountOption {
    pub(super) group: Group,
    /// The name, with `=VALUE` if it takes one, or `(no_)name`.
    pub(super) form: &'static str,
    /// The default value; empty if the option is off, or has no value.
    pub(super) default: &'static str,
    /// The description in the help text.
    pub(super) help: &'static str,
    /// More text for the manual, in its markup.
    pub(super) more: &'static str,
    pub(super) effect: Effect,
}

pub(super) const fn entry(
    group: Group,
    form: &'static str,
    default: &'static str,
    help: &'static str,
    more: &'static str,
    effect: Effect,
) -> MountOption {
    MountOption {
        group,
        form,
        default,
        help,
        more,
        effect,
    }
}

impl MountOption {
    /// The name, and the name of the opposite if there is one.
    fn pair(&self) -> (&'static str, Option<String>) {
        let name = self.form.split('=').next().unwrap_or(self.form);
        match name.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            Some((no, name)) => (name, Some(format!("{no}{name}"))),
            None => (name, None),
        }
    }

    /// The names that the parser knows, without values.
    pub(super) fn names(&self) -> Vec<String> {
        let (name, opposite) = self.pair();
        [name.to_owned()].into_iter().chain(opposite).collect()
    }

    /// Whether it does anything on Windows, or nothing anywhere.
    pub(super) fn acts_on_windows(&self) -> bool {
        !NOT_ON_WINDOWS.contains(&self.form)
    }

    pub(super) fn takes_value(&self) -> bool {
        matches!(self.effect, Effect::Value(_))
    }

    /// True if `name` is this option, false if it is its opposite, otherwise None.
    fn answers_to(&self, name: &str) -> Option<bool> {
        let (own, opposite) = self.pair();
        if name == own {
            return Some(true);
        }
        opposite.filter(|opposite| name == opposite).map(|_| false)
    }

    /// If the option has this name and takes no value, applies it and returns true.
    pub(super) fn set(&self, name: &str, settings: &mut Settings) -> bool {
        let Some(on) = self.answers_to(name) else {
            return false;
        };
        match self.effect {
            Effect::Value(_) => return false,
            Effect::Flag(set) => set(settings),
            Effect::Switch(set) => set(settings, on),
            Effect::Obsolete => settings
                .warnings
                .push(format!("`{name}` is obsolete and has no effect")),
        }
        true
    }

    /// If the option has the name of `value` and takes a value, applies it and returns true.
    pub(super) fn set_to(&self, value: Value<'_>, settings: &mut Settings) -> Result<bool> {
        match self.effect {
            Effect::Value(set) if self.answers_to(value.name) == Some(true) => {
                set(settings, value)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// Forms of the options that do nothing on Windows: they are about the kernel, the scheduler and the mount
/// table of Linux.
pub(super) const NOT_ON_WINDOWS: [&str; 24] = [
    "rw=DIR|tmp",
    "union",
    "whiteouts=WHAT",
    "dir=MOUNTPOINT",
    "open_images=N",
    "close_after=TIME",
    "ctl=SOCKET",
    "snapshots=NAME",
    "follow_newest",
    "blocksize=SIZE",
    "(no_)list_xattrs",
    "max_threads=N",
    "(no_)cache_sparse",
    "(no_)push",
    "(no_)follow",
    "(no_)uring",
    "(no_)guard",
    "auto_unmount",
    "nonempty",
    "remount",
    "(no)suid",
    "(no)dev",
    "(no)exec",
    "max_read=N",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pairs() {
        let entry = |form| entry(Group::Image, form, "", "", "", Effect::Obsolete);
        assert_eq!(entry("(no_)a").names(), ["a", "no_a"]);
        assert_eq!(entry("(no)a").names(), ["a", "noa"]);
        assert_eq!(entry("a=B[+B...]").names(), ["a"]);
        assert_eq!(entry("(no_)a").answers_to("no_a"), Some(false));
        assert_eq!(entry("(no_)a").answers_to("a"), Some(true));
        assert_eq!(entry("(no_)a").answers_to("noa"), None);
    }
}
