//! `--script`: a script of the user decides which entries are stored, and how files are grouped
//! and ordered. `docs/scripting.md` describes it to users.

mod decider;
#[cfg(feature = "lua")]
mod lua;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_writer::{Category, EntryHook, HookEntry, Meta};

use decider::Decider;
pub(super) use decider::error;

#[cfg(not(feature = "lua"))]
use crate::common::ToolError;
use crate::common::{Logger, Result};

/// A script that was read and found usable.
#[derive(Debug, Clone)]
pub(super) struct Script {
    hook: Arc<dyn Decider>,
}

impl Script {
    /// Reads the script in `file`; `print` of the script goes to `logger`. When `stop` is set,
    /// a running script ends with an error.
    ///
    /// # Errors
    /// If the script cannot be read or fails, with file and line.
    pub(super) fn load(file: &Path, stop: &Arc<AtomicBool>, logger: &Logger) -> Result<Self> {
        #[cfg(feature = "lua")]
        {
            let hook = Arc::new(lua::LuaScript::load(file, stop, logger)?);
            Ok(Self { hook })
        }
        #[cfg(not(feature = "lua"))]
        {
            let _ = (file, stop, logger);
            Err(ToolError::new(
                "option '--script' needs Lua, which this program was built without",
            ))
        }
    }

    /// The questions of the build.
    pub(super) fn hook(&self) -> Arc<dyn EntryHook> {
        Arc::clone(&self.hook) as Arc<dyn EntryHook>
    }

    /// Whether the script keeps an entry, for `--debug-filter`.
    ///
    /// # Errors
    /// If the script fails, with file and line.
    pub(super) fn keeps(&self, path: &[u8], meta: &Meta) -> Result<bool> {
        let decided = self.hook.entry(&HookEntry { path, meta });
        decided.map(|decision| decision.keep).map_err(error)
    }

    /// Whether it gives order keys.
    pub(super) fn has_order(&self) -> bool {
        self.hook.has_order()
    }

    /// Whether a file was put into this category.
    pub(super) fn has_made(&self, category: Category) -> bool {
        self.hook.has_made(category)
    }
}
