//! `dwarfs --ctl`: asks the driver of a mount to add, remove or list images.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use redwarfs_fuse::Images;
use redwarfs_io::place::is_remote;

use super::Given;
use super::socket::{self, BAD, GOOD};
use crate::common::error::{Result, ToolError, display_name};
use crate::common::json::JsonWriter;

/// The attribute of the root of a mount with the path of its socket.
const ATTRIBUTE: &str = "user.dwarfs.driver.ctl";
/// Fields of each image of a list.
const FIELDS: usize = 7;

/// What to write.
const USAGE: &str =
    "dwarfs --ctl SOCKET|MOUNTPOINT add [NAME=]IMAGE..., remove NAME..., or list [--json]";

/// Carries out a command. `json` asks for a list in this form.
///
/// # Errors
/// The command is wrong, there is no driver, or it refuses.
pub(in crate::dwarfs) fn run(target: &Path, command: &[OsString], json: bool) -> Result<()> {
    let wrong = |what: &str| ToolError::new(what).hint(USAGE);
    let Some((verb, values)) = command.split_first() else {
        return Err(wrong("no command"));
    };
    let verb = verb.to_str().unwrap_or_default();
    if json && verb != "list" {
        return Err(wrong("--json is for list"));
    }
    match (verb, values) {
        ("add" | "remove", []) => Err(wrong("no image named")),
        ("add", images) => {
            let socket = socket_of(target)?;
            for image in images {
                let given = Given::parse(image)?;
                if !is_remote(&given.image) {
                    let found = fs::metadata(&given.image);
                    let found =
                        found.map_err(|error| failed("add").path(&given.image).io(&error))?;
                    check_type(&found, &given.image)?;
                }
                let fields = [OsStr::new("add"), &given.name, given.image.as_os_str()];
                ask(&socket, "add", &fields)?;
            }
            wait_for_the_kernel();
            Ok(())
        }
        ("remove", names) => {
            let socket = socket_of(target)?;
            for name in names {
                ask(&socket, "remove", &[OsStr::new("remove"), name])?;
            }
            wait_for_the_kernel();
            Ok(())
        }
        ("list", []) => {
            let reply = ask(&socket_of(target)?, "list", &[OsStr::new("list")])?;
            let out = io::stdout().lock();
            // A closed pipe (`| head`) is no reason to complain.
            let _ = match json {
                true => write_json(&reply, out),
                false => write_text(&reply, out),
            };
            Ok(())
        }
        ("list", _) => Err(wrong("list takes no values")),
        _ => Err(wrong("no such command").cause(display_name(&command[0]))),
    }
}

/// Refuses what cannot be an image.
fn check_type(found: &Metadata, image: &Path) -> Result<()> {
    let ty = found.file_type();
    let cause = match () {
        () if ty.is_file() || ty.is_block_device() => return Ok(()),
        () if ty.is_dir() => "is a directory, not an image file",
        () => "is neither a regular file nor a block device",
    };
    Err(failed("add").path(image).cause(cause))
}

/// Afterwards, all programs see the change.
fn wait_for_the_kernel() {
    std::thread::sleep(Images::SEEN_AFTER);
}

fn failed(verb: &str) -> ToolError {
    match verb {
        "list" => ToolError::new("cannot list images"),
        _ => ToolError::new(format!("cannot {verb} image")),
    }
}

/// The socket: it is named, or the root of the mount says where it is.
fn socket_of(target: &Path) -> Result<PathBuf> {
    let cannot = || ToolError::new("cannot reach the driver").path(target);
    let found = fs::metadata(target).map_err(|error| cannot().io(&error))?;
    if found.file_type().is_socket() {
        return Ok(target.to_owned());
    }
    let mut buffer = vec![0; 4096];
    match rustix::fs::getxattr(target, ATTRIBUTE, &mut buffer[..]) {
        Ok(length) => {
            buffer.truncate(length);
            Ok(PathBuf::from(OsString::from_vec(buffer)))
        }
        Err(_) => Err(cannot()
            .cause("no control socket, and no mount of several images")
            .hint("with -o noxattr, name the socket")),
    }
}

/// Sends a request, and returns the fields of the reply.
fn ask(socket: &Path, verb: &str, fields: &[&OsStr]) -> Result<Vec<u8>> {
    let mut request = Vec::new();
    for field in fields {
        socket::put(&mut request, field);
    }
    let reply = socket::ask(socket, &request).map_err(|error| {
        ToolError::new("cannot reach the driver")
            .path(socket)
            .io(&error)
    })?;
    match reply.split_first() {
        Some((&GOOD, rest)) => Ok(rest.to_vec()),
        Some((&BAD, rest)) => {
            let cause = socket::fields(rest)
                .first()
                .map(|cause| display_name(cause));
            Err(failed(verb).cause(cause.unwrap_or_default()))
        }
        _ => Err(failed(verb).cause("the driver has ended, or is busy for other users only")),
    }
}

/// One image of a list.
struct Line<'r> {
    name: &'r OsStr,
    source: &'r OsStr,
    slot: u32,
    status: &'r OsStr,
    cause: &'r OsStr,
    bytes: u64,
    inodes: u64,
}

fn lines(reply: &[u8]) -> Vec<Line<'_>> {
    let number = |field: &OsStr| field.to_str().and_then(|text| text.parse().ok());
    let fields = socket::fields(reply);
    let lines = fields
        .chunks_exact(FIELDS)
        .filter_map(|fields| match fields {
            &[name, source, slot, status, cause, bytes, inodes] => Some(Line {
                name,
                source,
                slot: u32::try_from(number(slot)?).ok()?,
                status,
                cause,
                bytes: number(bytes)?,
                inodes: number(inodes)?,
            }),
            _ => None,
        });
    lines.collect()
}

fn write_text(reply: &[u8], mut out: impl Write) -> io::Result<()> {
    let lines = lines(reply);
    let width = lines
        .iter()
        .map(|line| display_name(line.name).chars().count());
    let width = width.max().unwrap_or_default();
    for line in &lines {
        let (name, status, source) = (
            display_name(line.name),
            display_name(line.status),
            display_name(line.source),
        );
        write!(out, "{name:<width$}  {status:<6}  {source}")?;
        match line.cause.is_empty() {
            true => writeln!(out)?,
            false => writeln!(out, "  ({})", display_name(line.cause))?,
        }
    }
    out.flush()
}

fn write_json(reply: &[u8], mut out: impl Write) -> io::Result<()> {
    for line in lines(reply) {
        let mut json = JsonWriter::compact(&mut out);
        json.begin_object()?;
        json.name("name", line.name.as_encoded_bytes())?;
        json.name("source", line.source.as_encoded_bytes())?;
        json.number_at("slot", line.slot)?;
        json.string_at("status", &line.status.to_string_lossy())?;
        if !line.cause.is_empty() {
            json.string_at("cause", &line.cause.to_string_lossy())?;
        }
        json.number_at("bytes", line.bytes)?;
        json.number_at("inodes", line.inodes)?;
        json.end_object()?;
        json.finish()?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply() -> Vec<u8> {
        let mut reply = Vec::new();
        for field in ["a", "/srv/a", "1", "open", "", "10", "2"] {
            socket::put(&mut reply, field);
        }
        for field in ["long\nname", "/srv/b", "2", "failed", "no image", "0", "0"] {
            socket::put(&mut reply, field);
        }
        reply
    }

    #[test]
    fn lists_as_text_and_json() {
        let mut text = Vec::new();
        write_text(&reply(), &mut text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            "a           open    /srv/a\nlong\\nname  failed  /srv/b  (no image)\n"
        );
        let mut json = Vec::new();
        write_json(&reply(), &mut json).unwrap();
        let json = String::from_utf8(json).unwrap();
        let all: Vec<serde_json::Value> = json
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(all.len(), 2);
        assert_eq!(all[0]["name"], "a");
        assert_eq!(
            (&all[1]["cause"], &all[1]["slot"]),
            (&"no image".into(), &2.into())
        );
    }

    #[test]
    fn mistakes() {
        for (command, text) in [
            (&[][..], "no command"),
            (&["grow"], "no such command: grow"),
            (&["add"], "no image named"),
            (&["remove"], "no image named"),
            (&["list", "x"], "list takes no values"),
            (&["list"], "cannot reach the driver: /nowhere"),
        ] {
            let command: Vec<OsString> = command.iter().map(OsString::from).collect();
            let line = run(Path::new("/nowhere"), &command, false)
                .unwrap_err()
                .line("dwarfs");
            assert!(line.starts_with(&format!("dwarfs: {text}")), "{line}");
        }
        let json = run(Path::new("/"), &["remove".into(), "x".into()], true);
        assert!(
            json.unwrap_err()
                .line("dwarfs")
                .contains("--json is for list")
        );
    }
}
