//! The control socket: where it is, and what goes over it.
//!
//! A request is some fields, each ended by a zero byte: the command, and its values. Then the client closes its
//! direction. A reply begins with [`GOOD`] or [`BAD`], and has fields, too. Paths and names have no zero bytes.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::geteuid;

/// Begins the reply to a request that was carried out.
pub(super) const GOOD: u8 = b'+';
/// Begins the reply with the cause of a failure.
pub(super) const BAD: u8 = b'-';
/// Largest request.
const LARGEST_REQUEST: u64 = 64 << 10;
/// Largest reply.
const LARGEST_REPLY: u64 = 256 << 20;
/// How long the client waits for the driver, which may wait for the server of an image.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long the driver waits for a whole request, and for the client to take the whole reply. Others wait meanwhile.
const PATIENCE_OF_DRIVER: Duration = Duration::from_secs(2);

/// A socket that is removed at the end.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Makes the socket, at a path of its own if none is given. A socket that nobody serves is replaced.
    pub(super) fn bind(path: Option<&Path>) -> io::Result<Self> {
        let path = match path {
            Some(path) => std::path::absolute(path)?,
            None => directory()?.join(format!("{}.sock", std::process::id())),
        };
        let listener = match UnixListener::bind(&path) {
            // A connection to a file that is no socket is refused, too.
            Err(error) if error.kind() == ErrorKind::AddrInUse && is_socket(&path) => {
                match UnixStream::connect(&path) {
                    Err(refused) if refused.kind() == ErrorKind::ConnectionRefused => {
                        fs::remove_file(&path)?;
                        UnixListener::bind(&path)?
                    }
                    _ => return Err(error),
                }
            }
            other => other?,
        };
        let socket = Self { listener, path };
        fs::set_permissions(&socket.path, Permissions::from_mode(0o600))?;
        Ok(socket)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // It may be gone, or in a place that is.
        let _ = fs::remove_file(&self.path);
    }
}

/// The directory for sockets: that of the user's session, or else one that only the user can enter.
fn directory() -> io::Result<PathBuf> {
    let user = geteuid();
    let session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let session = session.filter(|dir| dir.is_absolute() && is_own(dir));
    let directory = match session {
        Some(session) => session.join("dwarfs"),
        None if user.is_root() && Path::new("/run").is_dir() => PathBuf::from("/run/dwarfs"),
        None => std::env::temp_dir().join(format!("dwarfs-{}", user.as_raw())),
    };
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !is_own(&directory) {
        return Err(io::Error::new(
            ErrorKind::PermissionDenied,
            format!("{} belongs to somebody else", directory.display()),
        ));
    }
    Ok(directory)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Whether a directory belongs to the user, and nobody else can write to it.
fn is_own(directory: &Path) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|found| {
        found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0
    })
}

/// Whether the other end is a process of the same user, or of root.
pub(super) fn is_allowed(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid == geteuid() || peer.uid.is_root())
}

/// Fields, each ended by a zero byte.
pub(super) fn fields(message: &[u8]) -> Vec<&OsStr> {
    let mut parts: Vec<_> = message.split(|&byte| byte == 0).collect();
    // What is behind the last end.
    parts.pop();
    parts.into_iter().map(OsStr::from_bytes).collect()
}

/// Appends a field.
pub(super) fn put(message: &mut Vec<u8>, field: impl AsRef<OsStr>) {
    message.extend_from_slice(field.as_ref().as_bytes());
    message.push(0);
}

/// Reads a request.
pub(super) fn receive(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE_OF_DRIVER;
    let mut message = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        stream.set_read_timeout(Some(until(end)?))?;
        let read = match stream.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        if read == 0 {
            return Ok(message);
        }
        message.extend_from_slice(buffer.get(..read).unwrap_or_default());
        if message.len() as u64 > LARGEST_REQUEST {
            return Err(too_long());
        }
    }
}

/// Sends a reply.
pub(super) fn send(stream: &mut UnixStream, mut reply: &[u8]) -> io::Result<()> {
    let end = Instant::now() + PATIENCE_OF_DRIVER;
    while !reply.is_empty() {
        stream.set_write_timeout(Some(until(end)?))?;
        let written = match stream.write(reply) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        reply = reply.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// The time that is left.
fn until(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// Sends a request, and reads the reply.
pub(super) fn ask(socket: &Path, request: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    whole(&mut stream, LARGEST_REPLY)
}

fn whole(stream: &mut UnixStream, most: u64) -> io::Result<Vec<u8>> {
    let mut message = Vec::new();
    let read = stream.take(most + 1).read_to_end(&mut message)?;
    if read as u64 > most {
        return Err(too_long());
    }
    Ok(message)
}

fn too_long() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "a message is too long")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_messages() {
        let mut message = Vec::new();
        for field in ["add", "", "a\nb"] {
            put(&mut message, field);
        }
        assert_eq!(fields(&message), ["add", "", "a\nb"]);
        // An incomplete field does not count.
        assert_eq!(fields(b"a\0b"), ["a"]);
        assert!(fields(b"").is_empty());
    }

    #[test]
    fn sockets_are_private_and_go_with_their_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = Socket::bind(Some(&path)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            Socket::bind(Some(&path)).unwrap_err().kind(),
            ErrorKind::AddrInUse
        );
        drop(socket);
        assert!(!path.exists());
        // Left behind by a process that was killed.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let again = Socket::bind(Some(&path)).unwrap();
        assert!(again.path().exists());
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(Socket::bind(Some(&dir.path().join("file"))).is_err());
        assert!(dir.path().join("file").exists());
    }

    #[test]
    fn only_own_directories_count() {
        let dir = tempfile::tempdir().unwrap();
        assert!(is_own(dir.path()));
        fs::set_permissions(dir.path(), Permissions::from_mode(0o770)).unwrap();
        assert!(!is_own(dir.path()));
        assert!(!is_own(&dir.path().join("absent")));
    }
}
