//! Scripts in Lua.
//!
//! The state of the interpreter outlives all calls, so that a script can count and remember. The
//! build calls it from one thread, in an order that the input alone decides.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mlua::chunk::ChunkMode;
use mlua::{
    Error as LuaError, Function, HookTriggers, Lua, LuaOptions, LuaString, StdLib, Value, VmState,
};
use redwarfs_writer::{
    Category, Decision, EntryHook, Error as BuildError, FileType, HookEntry, OrderKey,
};

use super::decider::{Decider, error};
use crate::common::error::{display_path, io_cause, one_line};
use crate::common::number::format_size;
use crate::common::{Logger, Result, ToolError};

/// Bytes that a script may hold.
const MEMORY: usize = 64 << 20;
/// Instructions of the interpreter between two looks at the stop flag.
const INTERVAL: u32 = 1 << 12;
/// Longest name of a chunk that the interpreter shows unchanged.
const CHUNK_NAME: usize = 50;
/// Name of the chunk that is ours.
const PRELUDE: &str = "mkdwarfs";

/// A script with its state.
pub(super) struct LuaScript {
    lua: Lua,
    /// Called with an entry.
    decide: Function,
    /// Tells which function of the script runs.
    running: Function,
    functions: Functions,
    script_name: ScriptName,
    stop: Arc<AtomicBool>,
    made: Mutex<BTreeSet<Category>>,
}

impl fmt::Debug for LuaScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LuaScript({})", self.script_name.file)
    }
}

/// The functions that a script defines.
struct Functions {
    filter: Option<Function>,
    category: Option<Function>,
    order: Option<Function>,
}

/// How a script is called in messages.
struct ScriptName {
    /// By us.
    file: String,
    /// By the interpreter.
    chunk: String,
}

impl LuaScript {
    pub(super) fn load(file: &Path, stop: &Arc<AtomicBool>, logger: &Logger) -> Result<Self> {
        let text = std::fs::read(file).map_err(|e| {
            ToolError::new("cannot read script")
                .path(file)
                .cause(io_cause(&e))
        })?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let script_name = ScriptName {
            file: display_path(file),
            chunk: match one_line(&name) {
                name if name.len() <= CHUNK_NAME => name,
                _ => "script".to_owned(),
            },
        };
        let prepared = prepare(stop, logger);
        let (lua, prelude) = prepared.map_err(|e| error(script_name.describe(&e)))?;
        let (bind, decide, running) = prelude;
        let failed = |e: &LuaError| {
            if stop.load(Ordering::Relaxed) {
                super::super::output::interrupted()
            } else {
                error(script_name.describe(e))
            }
        };
        let chunk = lua
            .load(plain(&text))
            .set_name(format!("@{}", script_name.chunk));
        let ran = chunk.set_mode(ChunkMode::Text).exec();
        ran.map_err(|e| failed(&e))?;
        let found: (Value, Value, Value) = bind.call(()).map_err(|e| failed(&e))?;
        let function = |name: &str, value: Value| match value {
            Value::Nil => Ok(None),
            Value::Function(function) => Ok(Some(function)),
            other => {
                let (file, kind) = (&script_name.file, other.type_name());
                Err(error(format!(
                    "{file}: '{name}' is a {kind}, not a function"
                )))
            }
        };
        let functions = Functions {
            filter: function("filter", found.0)?,
            category: function("category", found.1)?,
            order: function("order", found.2)?,
        };
        if functions.all().all(|(_, function)| function.is_none()) {
            let file = &script_name.file;
            let text = format!("{file}: defines none of 'filter', 'category', 'order'");
            return Err(error(text));
        }
        Ok(Self {
            lua,
            decide,
            running,
            functions,
            script_name,
            stop: Arc::clone(stop),
            made: Mutex::default(),
        })
    }

    fn call(&self, entry: &HookEntry<'_>) -> mlua::Result<(Value, Value, Value)> {
        let (path, meta) = (entry.path, entry.meta);
        let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
        let size = match meta.kind {
            FileType::Regular => meta.size,
            _ => 0,
        };
        let target = meta.target.as_deref();
        let target = target.map(|target| self.lua.create_string(target));
        self.decide.call((
            self.lua.create_string(path)?,
            self.lua.create_string(name)?,
            type_name(meta.kind),
            size,
            meta.permissions & 0o7777,
            meta.uid,
            meta.gid,
            meta.mtime.sec,
            meta.atime.sec,
            meta.ctime.sec,
            meta.nlink,
            target.transpose()?,
        ))
    }

    /// The decision from the result of the script.
    fn decision(&self, found: (Value, Value, Value)) -> Result<Decision, String> {
        let (keep, category, key) = found;
        let keep = match keep {
            Value::Boolean(keep) => keep,
            other => return Err(self.returned("filter", "true or false", &other)),
        };
        let category = match category {
            Value::Nil => None,
            Value::String(name) => Some(self.category(&name)?),
            other => return Err(self.returned("category", "a string or nil", &other)),
        };
        let key = match key {
            Value::Nil => None,
            Value::Integer(number) => Some(OrderKey::integer(number)),
            Value::Number(number) => match OrderKey::float(number) {
                Some(key) => Some(key),
                None => return Err(self.at("order", "returned what is not a number (nan)")),
            },
            Value::String(text) => Some(OrderKey::bytes(&text.as_bytes())),
            other => return Err(self.returned("order", "a number, a string or nil", &other)),
        };
        Ok(Decision {
            keep,
            category,
            key,
        })
    }

    fn category(&self, name: &LuaString) -> Result<Category, String> {
        let category = Category::named(&name.to_string_lossy())
            .map_err(|e| self.at("category", &e.to_string()))?;
        if category.content_kind() != redwarfs_codec::ContentKind::Bytes {
            let text = format!("'{category}' is for data that its categorizer finds");
            return Err(self.at("category", &text));
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.insert(category);
        Ok(category)
    }

    fn returned(&self, function: &str, wanted: &str, found: &Value) -> String {
        let text = format!("returned a value of type {}", found.type_name());
        self.at(function, &format!("{text} instead of {wanted}"))
    }

    /// A message about one of the functions, with the line that it begins in.
    fn at(&self, function: &str, what: &str) -> String {
        let found = self.functions.all().find(|(name, _)| *name == function);
        let line = found.and_then(|(_, function)| function.as_ref()?.info().line_defined);
        self.script_name
            .line(line, &format!("'{function}': {what}"))
    }

    /// What went wrong in a call. If the error has no line, it gets the line of the function.
    fn failure(&self, e: &LuaError) -> String {
        let (line, what) = self.script_name.locate(e);
        if line.is_none()
            && let Ok(function) = self.running.call::<String>(())
        {
            return self.at(&function, &what);
        }
        self.script_name.line(line, &what)
    }
}

impl Functions {
    fn all(&self) -> impl Iterator<Item = (&'static str, &Option<Function>)> {
        [
            ("filter", &self.filter),
            ("category", &self.category),
            ("order", &self.order),
        ]
        .into_iter()
    }
}

impl EntryHook for LuaScript {
    fn entry(&self, entry: &HookEntry<'_>) -> redwarfs_writer::Result<Decision> {
        let decided = match self.call(entry) {
            Ok(found) => self.decision(found),
            Err(e) => Err(self.failure(&e)),
        };
        if self.stop.load(Ordering::Relaxed) {
            return Err(BuildError::Interrupted);
        }
        decided.map_err(|text| {
            let path = String::from_utf8_lossy(entry.path);
            BuildError::Hook(format!("{text} (for '{path}')"))
        })
    }

    fn memory(&self) -> u64 {
        self.lua.used_memory() as u64
    }
}

impl Decider for LuaScript {
    fn has_order(&self) -> bool {
        self.functions.order.is_some()
    }

    fn has_made(&self, category: Category) -> bool {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.contains(&category)
    }
}

impl ScriptName {
    fn line(&self, line: Option<usize>, what: &str) -> String {
        match line {
            Some(line) => format!("{}:{line}: {what}", self.file),
            None => format!("{}: {what}", self.file),
        }
    }

    /// An error of the interpreter with file and line.
    fn describe(&self, e: &LuaError) -> String {
        let (line, what) = self.locate(e);
        self.line(line, &what)
    }

    /// Line and text of an error of the interpreter.
    fn locate(&self, e: &LuaError) -> (Option<usize>, String) {
        let (text, trace) = match e {
            _ if is_out_of_memory(e) => (out_of_memory(), String::new()),
            LuaError::RuntimeError(text) | LuaError::SyntaxError { message: text, .. } => {
                match text.split_once("\nstack traceback:\n") {
                    Some((text, trace)) => (text.to_owned(), trace.to_owned()),
                    None => (text.clone(), String::new()),
                }
            }
            LuaError::CallbackError { traceback, cause } => (cause.to_string(), traceback.clone()),
            other => (other.to_string(), String::new()),
        };
        if let Some((line, what)) = position(&text, &self.chunk) {
            return (Some(line), what.to_owned());
        }
        // Raised on behalf of the script: where it was shows in the calls.
        let what = position(&text, PRELUDE).map_or(text.as_str(), |(_, what)| what);
        let mut calls = trace.lines();
        let line = calls.find_map(|call| position(call.trim_start(), &self.chunk));
        (line.map(|(line, _)| line), what.to_owned())
    }
}

/// Line and message of `CHUNK:LINE: MESSAGE`.
fn position<'t>(text: &'t str, chunk: &str) -> Option<(usize, &'t str)> {
    let rest = text.strip_prefix(chunk)?.strip_prefix(':')?;
    let (line, what) = rest.split_once(':')?;
    Some((line.parse().ok()?, what.trim_start()))
}

fn is_out_of_memory(e: &LuaError) -> bool {
    match e {
        LuaError::MemoryError(_) => true,
        LuaError::CallbackError { cause, .. } => is_out_of_memory(cause),
        _ => false,
    }
}

fn out_of_memory() -> String {
    let limit = format_size(MEMORY as u64);
    format!("the script needs more than {limit} of memory")
}

/// The interpreter, and the functions that the prelude returns.
fn prepare(
    stop: &Arc<AtomicBool>,
    logger: &Logger,
) -> mlua::Result<(Lua, (Function, Function, Function))> {
    let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH | StdLib::UTF8;
    let lua = Lua::new_with(libraries, LuaOptions::new())?;
    lua.set_memory_limit(MEMORY)?;
    let stopped = |stop: &AtomicBool| match stop.load(Ordering::Relaxed) {
        true => Err(LuaError::runtime("interrupted")),
        false => Ok(()),
    };
    let flag = Arc::clone(stop);
    let triggers = HookTriggers::new().every_nth_instruction(INTERVAL);
    lua.set_hook(triggers, move |_, _| {
        stopped(&flag).map(|()| VmState::Continue)
    })?;
    let flag = Arc::clone(stop);
    let check = lua.create_function(move |_, ()| stopped(&flag))?;
    let logger = logger.clone();
    let log = lua.create_function(move |_, text: LuaString| {
        logger.info(format_args!("script: {}", text.to_string_lossy()));
        Ok(())
    })?;
    let prelude = lua.load(include_str!("prelude.lua"));
    let prelude = prelude.set_name(format!("={PRELUDE}"));
    let functions = prelude.call((log, check))?;
    Ok((lua, functions))
}

/// The text without two things at its beginning that are not Lua: a byte order mark, and a line with
/// `#!` and an interpreter. Line numbers stay.
fn plain(text: &[u8]) -> &[u8] {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    if !text.starts_with(b"#") {
        return text;
    }
    let end = text.iter().position(|&b| b == b'\n');
    text.get(end.unwrap_or(text.len())..).unwrap_or_default()
}

fn type_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::CharDevice => "char",
        FileType::BlockDevice => "block",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}
