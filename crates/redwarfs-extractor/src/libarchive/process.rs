//! libarchive in a separate process, so that its crash is an error of one archive.
//!
//! The parent sends one request at a time, and reads until the answer. Output of the library comes
//! before the answer. The messages are those of [`redwarfs_libarchive::message`].

use std::ffi::OsString;
use std::io::{self, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use redwarfs_libarchive::message::{Body, LONGEST, Values, receive, send};

use super::engine::{Answer, Description, Engine, Fatal};
use super::plan::Plan;
use super::sys::Writer;

/// How to start a process that calls [`serve`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveProcess {
    /// The program.
    pub program: PathBuf,
    /// The first argument of the process, which selects this mode.
    pub name: OsString,
    /// All other arguments.
    pub arguments: Vec<OsString>,
}

/// Requests.
const HEADER: u8 = b'h';
const DATA: u8 = b'd';
const END: u8 = b'e';
const CLOSE: u8 = b'c';
/// Reports: a part of the archive, and the four answers.
const OUTPUT: u8 = b'o';
const DONE: u8 = b'D';
const WARNING: u8 = b'W';
const REFUSED: u8 = b'R';
const FATAL: u8 = b'F';

fn encode_plan(plan: &Plan) -> Vec<u8> {
    let mut body = Body::default();
    let (kind, name) = match plan {
        Plan::Format { name, .. } => (0, name.as_bytes()),
        Plan::FileName { name, .. } => (1, &name[..]),
        Plan::Filters { .. } => (2, &[][..]),
    };
    body.number(kind);
    body.bytes(name);
    body.bytes(plan.options().as_bytes());
    for filter in plan.filters() {
        body.bytes(filter.as_bytes());
    }
    body.into_bytes()
}

fn decode_plan(body: &[u8]) -> Option<Plan> {
    let mut values = Values::new(body);
    let kind = values.number()?;
    let name = values.bytes()?;
    let options = values.text()?;
    let mut filters = Vec::new();
    while !values.is_empty() {
        filters.push(values.text()?);
    }
    Some(match kind {
        0 => Plan::Format {
            name: String::from_utf8_lossy(name).into_owned(),
            filters,
            options,
        },
        1 => Plan::FileName {
            name: name.to_vec(),
            filters,
            options,
        },
        _ => Plan::Filters { filters, options },
    })
}

fn encode(d: &Description<'_>) -> Vec<u8> {
    let mut body = Body::default();
    body.bytes(d.path);
    for n in [d.mode, d.uid, d.gid, d.nlink] {
        body.number(n.into());
    }
    for n in [d.size, d.ino, d.rdev] {
        body.number(n);
    }
    body.time(d.mtime);
    body.number(d.atime.is_some().into());
    body.time(d.atime.unwrap_or_default());
    body.optional(d.symlink);
    body.optional(d.hard_link);
    body.number(d.ranges.is_some().into());
    for &(start, length) in d.ranges.unwrap_or_default() {
        body.number(start);
        body.number(length);
    }
    body.into_bytes()
}

/// Calls `with` with the entry that a message describes.
fn decode<T>(body: &[u8], with: impl FnOnce(&Description<'_>) -> T) -> Option<T> {
    let mut v = Values::new(body);
    let path = v.bytes()?;
    let (mode, uid, gid, nlink) = (v.small()?, v.small()?, v.small()?, v.small()?);
    let (size, ino, rdev) = (v.number()?, v.number()?, v.number()?);
    let mtime = v.time()?;
    let has_atime = v.number()? == 1;
    let atime = v.time()?;
    let (symlink, hard_link) = (v.optional()?, v.optional()?);
    let has_ranges = v.number()? == 1;
    let mut ranges = Vec::new();
    while !v.is_empty() {
        ranges.push((v.number()?, v.number()?));
    }
    Some(with(&Description {
        path,
        mode,
        uid,
        gid,
        size,
        mtime,
        atime: has_atime.then_some(atime),
        nlink,
        ino,
        rdev,
        symlink,
        hard_link,
        ranges: has_ranges.then_some(&ranges),
    }))
}

/// The library in another process.
struct Remote<'a> {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    body: Vec<u8>,
    out: &'a mut dyn Write,
}

impl Drop for Remote<'_> {
    fn drop(&mut self) {
        // It may have ended. Otherwise its result is not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Remote<'a> {
    /// Starts a process and has it prepare an archive. `None` if no process can be started.
    fn start(
        process: &ArchiveProcess,
        plan: &Plan,
        out: &'a mut dyn Write,
    ) -> Result<Result<Self, Fatal>, &'a mut dyn Write> {
        let mut command = Command::new(&process.program);
        crate::os::set_name(&mut command, &process.name);
        let started = command
            .args(&process.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = started else {
            return Err(out);
        };
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(out);
        };
        let mut remote = Self {
            child,
            to,
            from: BufReader::with_capacity(128 << 10, from),
            body: Vec::new(),
            out,
        };
        let answer = remote.ask(HEADER, &encode_plan(plan));
        Ok(answer.map(|_| remote))
    }

    fn ask(&mut self, kind: u8, body: &[u8]) -> Result<Answer, Fatal> {
        if send(&mut self.to, kind, body).is_err() {
            return Err(self.ended());
        }
        loop {
            match receive(&mut self.from, &mut self.body) {
                Ok(Some(OUTPUT)) => self.out.write_all(&self.body).map_err(Fatal::Output)?,
                Ok(Some(kind)) => {
                    let text = String::from_utf8_lossy(&self.body).into_owned();
                    return match kind {
                        DONE => Ok(Answer::Done),
                        WARNING => Ok(Answer::Warning(text)),
                        REFUSED => Ok(Answer::Refused(text)),
                        _ => Err(Fatal::Library(text)),
                    };
                }
                Ok(None) | Err(_) => return Err(self.ended()),
            }
        }
    }

    /// Why there is no answer.
    fn ended(&mut self) -> Fatal {
        let status = self.child.wait();
        let how = match status.map(|status| (crate::os::signal(status), status.code())) {
            Ok((Some(signal), _)) => format!("crashed (signal {signal})"),
            Ok((_, Some(code))) => format!("ended early (exit code {code})"),
            _ => "ended early".to_owned(),
        };
        Fatal::Library(format!(
            "libarchive {how}; another format may hold this tree"
        ))
    }
}

impl Plan {
    /// Starts to write: in a separate process if there is one, otherwise in this one.
    pub(crate) fn open<'a>(
        &self,
        process: Option<&ArchiveProcess>,
        out: &'a mut dyn Write,
    ) -> Result<Box<dyn Engine + 'a>, Fatal> {
        let out = match process {
            None => out,
            Some(process) => match Remote::start(process, self, out) {
                Ok(started) => return Ok(Box::new(started?)),
                Err(out) => out,
            },
        };
        let (setup, _) = self.setup().map_err(Fatal::Library)?;
        Ok(Box::new(setup.open(out)?))
    }
}

impl Engine for Remote<'_> {
    fn header(&mut self, d: &Description<'_>) -> Result<Answer, Fatal> {
        self.ask(HEADER, &encode(d))
    }

    fn data(&mut self, bytes: &[u8]) -> Result<(), Fatal> {
        for piece in bytes.chunks(LONGEST as usize) {
            self.ask(DATA, piece)?;
        }
        Ok(())
    }

    fn finish_entry(&mut self) -> Result<Answer, Fatal> {
        self.ask(END, &[])
    }

    fn close(&mut self) -> Result<Answer, Fatal> {
        self.ask(CLOSE, &[])
    }
}

/// Where the library writes in the other process.
struct Output<'a>(&'a mut dyn Write);

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = bytes.get(..LONGEST as usize).unwrap_or(bytes);
        send(self.0, OUTPUT, piece)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes archives as a process that [`ArchiveProcess`] describes: requests come from `input`, and `output`
/// gets the archive and the answers. Returns when the input ends.
///
/// # Errors
/// Those of reading and writing, which mean that the parent is gone.
pub fn serve(input: &mut dyn Read, output: &mut dyn Write) -> io::Result<()> {
    let mut body = Vec::new();
    if receive(input, &mut body)?.is_none() {
        return Ok(());
    }
    // The library holds one end of the output, and the answers go between what it writes.
    let output = std::cell::RefCell::new(output);
    let mut archive = SharedOutput(&output);
    let mut to_parent = Output(&mut archive);
    let opened = decode_plan(&body)
        .ok_or_else(|| Fatal::Library("no such archive".to_owned()))
        .and_then(|plan| plan.setup().map_err(Fatal::Library))
        .and_then(|(setup, _)| setup.open(&mut to_parent));
    let mut writer: Writer<'_> = match opened {
        Ok(writer) => {
            reply(&output, &Ok(Answer::Done))?;
            writer
        }
        Err(e) => return reply(&output, &Err(e)),
    };
    while let Some(kind) = receive(input, &mut body)? {
        let answer = match kind {
            HEADER => decode(&body, |d| writer.header(d))
                .unwrap_or_else(|| Err(Fatal::Library("no such entry".to_owned()))),
            DATA => writer.data(&body).map(|()| Answer::Done),
            END => writer.finish_entry(),
            _ => writer.close(),
        };
        reply(&output, &answer)?;
    }
    Ok(())
}

/// One of several users of an output.
struct SharedOutput<'a, 'b>(&'a std::cell::RefCell<&'b mut dyn Write>);

impl Write for SharedOutput<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

fn reply(
    output: &std::cell::RefCell<&mut dyn Write>,
    answer: &Result<Answer, Fatal>,
) -> io::Result<()> {
    let cause;
    let (kind, text) = match answer {
        Ok(Answer::Done) => (DONE, ""),
        Ok(Answer::Warning(text)) => (WARNING, &text[..]),
        Ok(Answer::Refused(text)) => (REFUSED, &text[..]),
        Err(Fatal::Library(text)) => (FATAL, &text[..]),
        Err(Fatal::Output(e)) => {
            cause = e.to_string();
            (FATAL, &cause[..])
        }
    };
    let mut output = output.borrow_mut();
    send(&mut **output, kind, text.as_bytes())?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let ranges = [(1, 2), (u64::MAX, 0)];
        let full = Description {
            path: b"a/\xff",
            mode: 0o100_644,
            uid: u32::MAX,
            gid: 1,
            size: 1 << 40,
            mtime: (-5, 999_999_999),
            atime: Some((i64::MIN, 0)),
            nlink: 3,
            ino: 9,
            rdev: 0x103,
            symlink: Some(b""),
            hard_link: Some(b"x"),
            ranges: Some(&ranges),
        };
        for d in [full, Description::default()] {
            let body = encode(&d);
            let same = decode(&body, |found| format!("{found:?}") == format!("{d:?}"));
            assert_eq!(same, Some(true));
            for end in 0..body.len() {
                // Shorter ones are told from whole ones, except where a range ends.
                let _ = decode(&body[..end], |_| ());
            }
        }
        let filters = vec!["gzip".to_owned(), "b64encode".to_owned()];
        for plan in [
            Plan::Format {
                name: "zip".to_owned(),
                filters: Vec::new(),
                options: "a=b".to_owned(),
            },
            Plan::FileName {
                name: b"x.\xff".to_vec(),
                filters: filters.clone(),
                options: String::new(),
            },
            Plan::Filters {
                filters,
                options: String::new(),
            },
        ] {
            assert_eq!(decode_plan(&encode_plan(&plan)), Some(plan));
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_process_that_ends_is_an_error_with_a_name() {
        for (script, text) in [
            ("kill -SEGV $$", "libarchive crashed (signal 11)"),
            ("exit 3", "libarchive ended early (exit code 3)"),
        ] {
            let process = ArchiveProcess {
                program: "/bin/sh".into(),
                name: "sh".into(),
                arguments: vec!["-c".into(), script.into()],
            };
            let plan = Plan::Filters {
                filters: Vec::new(),
                options: String::new(),
            };
            let mut out = Vec::new();
            match Remote::start(&process, &plan, &mut out) {
                Ok(Err(Fatal::Library(found))) => assert!(found.starts_with(text), "{found}"),
                _ => panic!("no error"),
            }
        }
    }
}
